"""What a filter or an action says, as the parser hands it over. Names are in lower case: they compare without case."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in the text; None: NULL."""

    value: object


@dataclass(frozen=True, slots=True)
class Parameter:
    """``@name``, with its ``@``. ``at``: where it stands."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class UserProperty:
    """An application property. ``spelled``: as it is written, for actions that create it."""

    name: str
    spelled: str


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """``sys.name``, whether there is one of that name or not."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class ComputedProperty:
    """``property(expression)``: the application property of that name."""

    name: "Expression"


Property = UserProperty | SystemProperty | ComputedProperty


@dataclass(frozen=True, slots=True)
class NewId:
    """``newid()``."""


@dataclass(frozen=True, slots=True)
class Signed:
    """``+`` or ``-`` before an operand."""

    sign: str
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A run of operators of one precedence, from left to right."""

    first: "Expression"
    rest: "tuple[tuple[str, Expression], ...]"


Expression = Constant | Parameter | UserProperty | SystemProperty | ComputedProperty | NewId | Signed | Arithmetic


@dataclass(frozen=True, slots=True)
class Comparison:
    """``=  <>  !=  <  <=  >  >=``."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    """True for a property that is null or missing."""

    subject: Property


@dataclass(frozen=True, slots=True)
class Exists:
    """True for a property that is there, null or not."""

    subject: Property


@dataclass(frozen=True, slots=True)
class In:
    """Equal to one of them."""

    operand: Expression
    members: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """``operand LIKE pattern ESCAPE escape``."""

    operand: Expression
    pattern: Expression
    escape: Expression | None


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; the forms with NOT inside (NOT IN, NOT LIKE, IS NOT NULL) are one around the other form."""

    operand: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    """Two or more."""

    operands: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more."""

    operands: "tuple[Predicate, ...]"


Predicate = Comparison | IsNull | Exists | In | Like | Not | And | Or


@dataclass(frozen=True, slots=True)
class Assignment:
    """``SET subject = value``."""

    subject: UserProperty | SystemProperty
    value: Expression


@dataclass(frozen=True, slots=True)
class Removal:
    """``REMOVE subject``."""

    subject: UserProperty | SystemProperty


Statement = Assignment | Removal

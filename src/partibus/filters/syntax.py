"""The syntax tree of a filter or an action. Names are in lower case, because they compare without case."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant in the text; None for NULL."""

    value: object


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter ``@name``, with its ``@``. ``at`` is its position in the text."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class UserProperty:
    """An application property. ``spelled`` is its original spelling, for actions that create it."""

    name: str
    spelled: str


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """A system property ``sys.name``, whether or not the name exists."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class ComputedProperty:
    """An application property with a computed name, ``property(expression)``."""

    name: "Expression"


Property = UserProperty | SystemProperty | ComputedProperty


@dataclass(frozen=True, slots=True)
class NewId:
    """A call of ``newid()``."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A ``+`` or ``-`` before an operand."""

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
    """A comparison: ``=  <>  !=  <  <=  >  >=``."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    """A test that is true for a property that is null or missing."""

    subject: Property


@dataclass(frozen=True, slots=True)
class Exists:
    """A test that is true for a property that exists, null or not."""

    subject: Property


@dataclass(frozen=True, slots=True)
class In:
    """A test that is true for a value that equals one of the members."""

    operand: Expression
    members: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A pattern match, ``operand LIKE pattern ESCAPE escape``."""

    operand: Expression
    pattern: Expression
    escape: Expression | None


@dataclass(frozen=True, slots=True)
class Not:
    """A negation. The forms with NOT inside (NOT IN, NOT LIKE, IS NOT NULL) are one around the other form."""

    operand: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    """A conjunction of two or more predicates."""

    operands: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """A disjunction of two or more predicates."""

    operands: "tuple[Predicate, ...]"


Predicate = Comparison | IsNull | Exists | In | Like | Not | And | Or


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment, ``SET subject = value``."""

    subject: UserProperty | SystemProperty
    value: Expression


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal, ``REMOVE subject``."""

    subject: UserProperty | SystemProperty


Statement = Assignment | Removal

"""The parser from text to `syntax`, by the grammar in `sql.lark`. It raises only `SqlTextError`.

The parser keeps a stack of its own, so that a thousand parentheses cause no recursion here. The library behind it takes
a tenth of a second to import, so `partibus.filters.sql` imports this module with the first SQL filter.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from partibus.errors import shown
from partibus.filters.model import INTEGER_MAX, STATEMENTS_MAX, TEXT_CHARS_MAX, SqlTextError
from partibus.filters.syntax import (
    And,
    Arithmetic,
    Assignment,
    Comparison,
    ComputedProperty,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    Removal,
    Signed,
    Statement,
    SystemProperty,
    UserProperty,
)

_GRAMMAR: Final = Path(__file__).with_name("sql.lark")
_PROPERTY_FUNCTIONS: Final = ("property", "p")


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """A builder that makes the node of each grammar rule as soon as the rule is complete.

    Tokens know their positions.
    """

    def filter(self, predicate: Predicate) -> Predicate:
        return predicate

    def action(self, *statements: Statement) -> tuple[Statement, ...]:
        return statements

    def disjunction(self, *operands: Predicate) -> Predicate:
        return Or(operands)

    def conjunction(self, *operands: Predicate) -> Predicate:
        return And(operands)

    def negate(self, operand: Predicate) -> Predicate:
        return Not(operand)

    def comparison(self, left: Expression, operator: Token, right: Expression) -> Predicate:
        return Comparison(str(operator), left, right)

    def is_null(self, subject: Property) -> Predicate:
        return IsNull(subject)

    def is_not_null(self, subject: Property) -> Predicate:
        return Not(IsNull(subject))

    def is_in(self, operand: Expression, *members: Expression) -> Predicate:
        return In(operand, members)

    def is_not_in(self, operand: Expression, *members: Expression) -> Predicate:
        return Not(In(operand, members))

    def like(self, operand: Expression, pattern: Expression, escape: Expression | None = None) -> Predicate:
        return Like(operand, pattern, escape)

    def not_like(self, operand: Expression, pattern: Expression, escape: Expression | None = None) -> Predicate:
        return Not(Like(operand, pattern, escape))

    def exists(self, subject: Property) -> Predicate:
        return Exists(subject)

    def sum(self, first: Expression, *rest: Any) -> Expression:
        return Arithmetic(first, tuple(zip(map(str, rest[0::2]), rest[1::2], strict=True)))

    product = sum

    def signed(self, sign: Token, operand: Expression) -> Expression:
        return Signed(str(sign), operand)

    def integer(self, digits: Token) -> Expression:
        value = int(digits)
        if value > INTEGER_MAX + 1:  # its negative is the smallest integer
            raise SqlTextError(_at(digits), f"a whole number up to {INTEGER_MAX} was expected, not {digits[:40]}")
        return Constant(value)

    def number(self, digits: Token) -> Expression:
        return Constant(float(digits))

    def text(self, quoted: Token) -> Expression:
        return Constant(_unquoted(quoted))

    def true(self) -> Expression:
        return Constant(True)

    def false(self) -> Expression:
        return Constant(False)

    def null(self) -> Expression:
        return Constant(None)

    def parameter(self, name: Token) -> Expression:
        return Parameter(name.lower(), _at(name))

    def function(self, name: Token) -> Expression:
        if name.lower() != "newid":
            raise SqlTextError(_at(name), f"newid(), property(name) or p(name) was expected, not {name}()")
        return NewId()

    def function_of(self, name: Token, argument: Expression) -> Expression:
        if name.lower() not in _PROPERTY_FUNCTIONS:
            raise SqlTextError(_at(name), f"newid(), property(name) or p(name) was expected, not {name}(…)")
        return ComputedProperty(argument)

    def property(self, *tokens: Token) -> Property:
        name = tokens[-1]
        spelled = str(name) if name.type == "NAME" else _unquoted(name)
        scope = tokens[0].lower() if len(tokens) > 1 else "user"
        if scope == "sys":
            return SystemProperty(spelled.lower(), _at(name))
        if scope != "user":
            raise SqlTextError(_at(tokens[0]), f"the scope sys or user was expected, not {tokens[0]}")
        return UserProperty(spelled.lower(), spelled)

    def assignment(self, subject: UserProperty | SystemProperty, _: Token, value: Expression) -> Statement:
        return Assignment(subject, value)

    def removal(self, subject: UserProperty | SystemProperty) -> Statement:
        return Removal(subject)


def _at(token: Token) -> int:
    return token.start_pos or 0


def _unquoted(token: Token) -> str:
    """Return a name without its quotes or brackets, and with doubled closing ones reduced to one."""
    return token[1:-1].replace(token[-1] * 2, token[-1])


_parser: Final = Lark(
    _GRAMMAR.read_text(encoding="utf-8"),
    start=["filter", "action"],
    parser="lalr",
    lexer="basic",
    transformer=_Builder(),
)


def parse_filter(text: str) -> Predicate:
    """Parse a filter."""
    return cast("Predicate", _parse(text, "filter"))


def parse_action(text: str) -> tuple[Statement, ...]:
    """Parse an action into its statements, at least one."""
    statements = cast("tuple[Statement, ...]", _parse(text, "action"))
    if len(statements) > STATEMENTS_MAX:
        raise SqlTextError(None, f"at most {STATEMENTS_MAX} statements were expected, not {len(statements)}")
    return statements


def _parse(text: str, start: str) -> object:
    if len(text) > TEXT_CHARS_MAX:
        raise SqlTextError(
            TEXT_CHARS_MAX, f"the end was expected after at most {TEXT_CHARS_MAX} characters, not {len(text)}"
        )
    try:
        return _parser.parse(text, start=start)
    except UnexpectedInput as error:
        raise _problem(text, error) from None
    except VisitError as error:
        if isinstance(error.orig_exc, SqlTextError):
            raise error.orig_exc from None
        raise


# Errors --------------------------------------------------------------------------------------------------------------

_UNCLOSED: Final = {
    "'": "a text in single quotes is not closed",
    '"': "a name in double quotes is empty or not closed",
    "[": "a name in brackets is empty or not closed",
}

_GROUPS: Final = (
    (frozenset({"_NOT", "INTEGER"}), "a condition", frozenset({"_EXISTS", "_OPEN", "PLUS", "MINUS", "NAME"})),
    (frozenset({"INTEGER"}), "a value", frozenset({"_OPEN", "PLUS", "MINUS", "NAME"})),
    (frozenset({"NAME"}), "a property", frozenset[str]()),
    (
        frozenset({"_LIKE", "_IN"}),
        "a comparison, such as = or LIKE",
        frozenset({"_NOT", "_IS", "EQUALS", "COMPARISON", "PLUS", "MINUS", "TIMES", "OVER", "MODULO"}),
    ),
)
"""Groups of terminals: those that together identify a group, its name in errors, and its other members."""
_VALUES: Final = frozenset(
    {"INTEGER", "NUMBER", "STRING", "_TRUE", "_FALSE", "_NULL", "PARAMETER", "BRACKETED", "QUOTED"}
)
_OPERATORS: Final = frozenset({"PLUS", "MINUS", "TIMES", "OVER", "MODULO"})
_BEHIND_A_NAME: Final = frozenset({"_DOT", "_OPEN"})
_SYMBOLS: Final = {
    "_OPEN": "(",
    "_CLOSE": ")",
    "_COMMA": ",",
    "_SEMICOLON": ";",
    "_DOT": ".",
    "EQUALS": "=",
}


def _problem(text: str, error: UnexpectedInput) -> SqlTextError:
    if isinstance(error, UnexpectedCharacters):
        at = error.pos_in_stream or 0
        found = text[at]
        if found in _UNCLOSED:
            return SqlTextError(at, _UNCLOSED[found])
        return SqlTextError(at, f"{shown(found)} has no meaning here. Put texts into single quotes and names into [ ]")
    if isinstance(error, UnexpectedToken):
        token = error.token
        expected = " or ".join(_expected(set(error.accepts or ())))
        if token.type == "$END":
            return SqlTextError(len(text), f"{expected} was expected, but the text ends")
        hint = ""
        if token.isalpha() and token.type.startswith("_") and "NAME" in (error.accepts or ()):
            hint = f". It is a keyword: write [{token}] for a property of that name"
        return SqlTextError(_at(token), f"{expected} was expected, not {shown(str(token))}{hint}")
    return SqlTextError(len(text), "more was expected")


def _expected(terminals: set[str]) -> Iterator[str]:
    """Describe the allowed continuations in words; omit those of a value where there are others."""
    rest = set(terminals)
    for needed, name, others in _GROUPS:
        if needed <= rest:
            yield name
            rest -= needed | others
            if needed & _VALUES or "NAME" in needed:
                rest -= _VALUES
    for less_likely in (_OPERATORS, _BEHIND_A_NAME):
        if rest - less_likely:
            rest -= less_likely
    for terminal in sorted(rest):
        if terminal == "$END":
            yield "the end"
        else:
            yield _SYMBOLS.get(terminal, terminal.strip("_"))

"""Compilation of `syntax` to functions of a message: one closure for each node, built once per rule.

A predicate's function returns true, false or unknown (None), by three-valued logic: AND is false when one side is, else
unknown when one side is; OR is true when one side is, else unknown when one side is; NOT unknown is unknown. Both stop
at the first side that decides. The common forms, a property compared with a constant, have closures of their own.
Compiling raises `SqlTextError` for errors that show without a message.
"""

from collections.abc import Callable, Mapping
from typing import cast

from partibus.filters.like import Pattern, compiled, remembered
from partibus.filters.model import CHARS_PER_UNIT, NESTING_MAX, EvaluationError, SqlTextError
from partibus.filters.syntax import (
    And,
    Arithmetic,
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
    Signed,
    SystemProperty,
    UserProperty,
)
from partibus.filters.values import COMPARISONS, Truth, calculate, equal, kind_name, negative, plain, positive
from partibus.filters.view import View

Test = Callable[[View], Truth]
Value = Callable[[View], object]


class Compiler:
    """A compiler with ``parameters`` by name, with the leading ``@`` and in any case."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self._parameters = {name.lower(): plain(value) for name, value in parameters.items()}
        self._depth = 0
        self.counts = False
        """Whether any compiled part counts its work (`View.spend`)."""

    # Predicates

    def test(self, node: Predicate) -> Test:
        """Return the function of a predicate."""
        self._enter()
        try:
            match node:
                case And(operands):
                    return _all([self.test(operand) for operand in operands])
                case Or(operands):
                    return _any([self.test(operand) for operand in operands])
                case Not(operand):
                    return _not(self.test(operand))
                case Comparison():
                    return self._comparison(node)
                case In(operand, members):
                    return self._in(operand, members)
                case Like():
                    return self._like(node)
                case IsNull(subject):
                    value = self.value(subject)
                    return lambda view: value(view) is None
                case Exists(subject):
                    return self._exists(subject)
        finally:
            self._depth -= 1

    def _comparison(self, node: Comparison) -> Test:
        left, right = self._constant(node.left), self._constant(node.right)
        if node.operator == "=" and isinstance(node.left, UserProperty) and isinstance(right, Constant):
            return _property_equals(node.left.name, right.value)
        if node.operator == "=" and isinstance(node.right, UserProperty) and isinstance(left, Constant):
            return _property_equals(node.right.name, left.value)
        compare = COMPARISONS[node.operator]
        read = self.value(node.left)
        if isinstance(right, Constant):
            constant = right.value
            return lambda view: compare(read(view), constant)
        other = self.value(node.right)
        return lambda view: compare(read(view), other(view))

    def _in(self, operand: Expression, members: tuple[Expression, ...]) -> Test:
        """Compile ``a IN (x, y)`` as ``a = x OR a = y``."""
        read = self.value(operand)
        constants = [self._constant(member) for member in members]
        texts = frozenset(member.value for member in constants if isinstance(member, Constant))
        if all(isinstance(text, str) for text in texts) and None not in constants:

            def is_one_of(view: View) -> Truth:
                value = read(view)
                return value in texts if type(value) is str else None

            return is_one_of
        others = [self.value(member) for member in members]

        def is_in(view: View) -> Truth:
            value = read(view)
            if value is None:
                return None
            found: Truth = False
            for other in others:
                same = equal(value, other(view))
                if same:
                    return True
                if same is None:
                    found = None
            return found

        return is_in

    def _like(self, node: Like) -> Test:
        read = self.value(node.operand)
        pattern, escape = self._constant(node.pattern), self._constant(node.escape) if node.escape else Constant(None)
        if pattern is not None and escape is not None:
            if not isinstance(pattern.value, str | None) or not isinstance(escape.value, str | None):
                raise SqlTextError(
                    None, "LIKE takes a text as its pattern and one character as its escape, and another type was found"
                )
            if pattern.value is None or (node.escape and escape.value is None):
                return lambda view: None
            try:
                fixed = compiled(pattern.value, escape.value)
            except EvaluationError as error:
                raise SqlTextError(None, str(error).rstrip(".")) from None

            return self._like_fixed(read, fixed)
        self.counts = True
        read_pattern = self.value(node.pattern)
        read_escape = self.value(node.escape) if node.escape else None

        def is_like_computed(view: View) -> Truth:
            value, wanted = read(view), read_pattern(view)
            character = None if read_escape is None else read_escape(view)
            if type(value) is not str or type(wanted) is not str:
                return None
            if read_escape is not None and type(character) is not str:
                return None
            view.spend(len(wanted))
            computed = remembered(wanted, cast("str | None", character))
            view.spend(computed.work(value))
            return computed.matches(value)

        return is_like_computed

    def _like_fixed(self, read: Value, pattern: Pattern) -> Test:
        matches, work, free_chars = pattern.matches, pattern.work, pattern.free_chars
        if free_chars is None:

            def is_like(view: View) -> Truth:
                value = read(view)
                return matches(value) if type(value) is str else None

            return is_like
        self.counts = True

        def is_like_counted(view: View) -> Truth:
            value = read(view)
            if type(value) is not str:
                return None
            if len(value) > free_chars:
                view.spend(work(value))
            return matches(value)

        return is_like_counted

    def _exists(self, subject: Property) -> Test:
        match subject:
            case UserProperty(name):
                return lambda view: name in view.user
            case ComputedProperty(expression):
                read_name = self.value(expression)
                return lambda view: _computed_name(read_name(view)) in view.user
            case SystemProperty(name):
                return lambda view: view.system(name) is not None

    def rule(self, node: Predicate) -> Test:
        """Return the function of a whole filter, with a budget of its own if it counts its work."""
        test = self.test(node)
        if not self.counts:
            return test

        def counted(view: View) -> Truth:
            view.next_rule()
            return test(view)

        return counted

    # Values

    def value(self, node: Expression) -> Value:
        """Return the function of an expression."""
        self._enter()
        try:
            match node:
                case Constant() | Parameter():
                    constant = cast("Constant", self._constant(node)).value
                    return lambda view: constant
                case UserProperty(name):
                    return lambda view: view.user.get(name)
                case SystemProperty(name):
                    return lambda view: view.system(name)
                case ComputedProperty(expression):
                    return _computed_property(self.value(expression))
                case NewId():
                    return lambda view: view.new_id()
                case Signed(sign, operand):
                    of, apply = self.value(operand), negative if sign == "-" else positive
                    return lambda view: apply(of(view))
                case Arithmetic(first, rest):
                    self.counts = True
                    return _chain(self.value(first), [(operator, self.value(operand)) for operator, operand in rest])
        finally:
            self._depth -= 1

    def _constant(self, node: Expression) -> Constant | None:
        """Return a constant or the value of a parameter; None for any other node."""
        if isinstance(node, Constant):
            return node
        if not isinstance(node, Parameter):
            return None
        if node.name not in self._parameters:
            raise SqlTextError(node.at, f"the parameter {node.name} has no value. Give it one under this name")
        return Constant(self._parameters[node.name])

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise SqlTextError(None, f"at most {NESTING_MAX} levels of nesting were expected, not more")


def _all(tests: list[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests

        def both(view: View) -> Truth:
            one = first(view)
            if one is False:
                return False
            other = second(view)
            if other is False:
                return False
            return None if one is None or other is None else True

        return both

    def every(view: View) -> Truth:
        result: Truth = True
        for test in tests:
            one = test(view)
            if one is False:
                return False
            if one is None:
                result = None
        return result

    return every


def _any(tests: list[Test]) -> Test:
    def one_of(view: View) -> Truth:
        result: Truth = False
        for test in tests:
            one = test(view)
            if one:
                return True
            if one is None:
                result = None
        return result

    return one_of


def _not(test: Test) -> Test:
    def negated(view: View) -> Truth:
        result = test(view)
        return None if result is None else not result

    return negated


def _property_equals(name: str, constant: object) -> Test:
    kind = type(constant)
    if kind is int or kind is float:
        as_float = float(cast("int | float", constant))

        def equals_number(view: View) -> Truth:
            value = view.user.get(name)
            if type(value) is kind:
                return value == constant
            return value == as_float if type(value) is float else equal(value, constant)

        return equals_number
    if constant is None:
        return lambda view: None

    def equals(view: View) -> Truth:
        value = view.user.get(name)
        return value == constant if type(value) is kind else None

    return equals


def _chain(first: Value, rest: list[tuple[str, Value]]) -> Value:
    def run(view: View) -> object:
        value = first(view)
        for operator, operand in rest:
            value = calculate(operator, value, operand(view))
            if type(value) is str:
                view.spend(1 + len(value) // CHARS_PER_UNIT)
        return value

    return run


def _computed_property(read: Value) -> Value:
    def run(view: View) -> object:
        name = _computed_name(read(view))
        return None if name is None else view.user.get(name)

    return run


def _computed_name(name: object) -> str | None:
    """Return the key of a property with a computed name.

    An unknown name gives None, which no property has.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise EvaluationError(f"property(…) takes the name of a property as a text, and was given {kind_name(name)}.")
    return name.lower()

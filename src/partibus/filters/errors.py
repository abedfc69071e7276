"""The two errors of a rule: in its text, and in its evaluation for a message."""


class SqlTextError(Exception):
    """Error for a filter or action that is not valid SQL. `partibus.filters.sql` turns it into an `ArgumentError`."""

    def __init__(self, at: int | None, problem: str) -> None:
        super().__init__(at, problem)
        self.at = at
        """The index of the first invalid character; None where the error has no single place."""
        self.problem = problem
        """The expected and the actual text, as a sentence without a full stop."""


class EvaluationError(Exception):
    """Error for a rule that fails on a message. Its text gives the reason as a whole sentence."""


class HeadersTooLarge(EvaluationError):
    """Error for a copy whose properties exceed the limit of a message after an action (dialect section 11.2)."""

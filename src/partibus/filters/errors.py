"""The two ways in which a rule goes wrong: when it is written down, and when a message meets it."""


class SqlTextError(Exception):
    """A filter or action that is no text of the language. `partibus.filters.sql` makes an `ArgumentError` of it."""

    def __init__(self, at: int | None, problem: str) -> None:
        super().__init__(at, problem)
        self.at = at
        """Index of the character where the text stops making sense; None where that is no one place."""
        self.problem = problem
        """What was expected there and what was found, as a sentence without an end."""


class EvaluationError(Exception):
    """A rule can't say whether it selects a message, or can't change it: its text says why, as a whole sentence."""


class HeadersTooLarge(EvaluationError):
    """What an action made of a message has more properties than a message may have (dialect section 11.2)."""

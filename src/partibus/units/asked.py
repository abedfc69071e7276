"""What this process has done for clients of other broker processes, which own no account here (R11).

It is known by the partition that they asked, and dealt out with the rest of the process's time, by bytes: else who has
clients here would pay for who has them elsewhere. Counted once per command and grant, whatever number of messages is in
it: messages that come together are of like size.
"""

from typing import Final

ASK_BYTES: Final = 256
"""As many bytes as a command costs that brings few (`partibus.units.account.Account.moved`)."""


class Asked:
    """Of one broker process."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        """By partition row, since they were taken last."""

    def note(self, row: int, messages: int, each_bytes: int) -> None:
        """A command with so many messages has come, or a grant of them has gone."""
        self._bytes[row] = self._bytes.get(row, 0) + ASK_BYTES + messages * each_bytes

    def take(self) -> dict[int, int]:
        """What was noted since this was asked last."""
        taken, self._bytes = self._bytes, {}
        return taken

"""Work of this process for clients that are connected to other broker processes (R11).

Such clients have no account here. Their commands are noted by the partition row that they address, and the meter
divides
the process's time by the bytes noted. Otherwise a namespace with clients here would pay for clients elsewhere. The cost
is
counted once per command and once per grant, whatever the number of messages: messages that come together have similar
sizes.
"""

from typing import Final

ASK_BYTES: Final = 256
"""The fixed cost of a command, in bytes (`partibus.units.account.Account.moved`)."""


class Asked:
    """The work noted in one broker process."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        """Bytes by partition row since the last `take`."""

    def note(self, row: int, messages: int, each_bytes: int) -> None:
        """Note a command that brought ``messages``, or a grant of them."""
        self._bytes[row] = self._bytes.get(row, 0) + ASK_BYTES + messages * each_bytes

    def take(self) -> dict[int, int]:
        """Return the bytes by partition row since the last call, and begin anew."""
        taken, self._bytes = self._bytes, {}
        return taken

"""What is compared between the sending and the reading side: counts, and checksums that order does not change.

The checksum of a set of messages is the sum, modulo 2^64, of their fingerprints: the first eight bytes of MD5 over
message id, a zero byte and body. A lost, doubled or changed message changes it. (Not a defence against forgery: MD5 is
used because Spark has it built in, so that the reading side is computed by none of our code.)
"""

from collections.abc import Iterable
from hashlib import md5
from typing import NamedTuple

CHECKSUM_MODULUS = 1 << 64


class Tally(NamedTuple):
    """A set of messages."""

    messages: int
    checksum: int


EMPTY = Tally(0, 0)


def fingerprint(message_id: str, body: bytes) -> int:
    """64 bits that stand for one message."""
    digest = md5(message_id.encode() + b"\0" + body, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")


def total(tallies: Iterable[Tally]) -> Tally:
    """The tally of all sets together."""
    messages = checksum = 0
    for tally in tallies:
        messages += tally.messages
        checksum += tally.checksum
    return Tally(messages, checksum % CHECKSUM_MODULUS)


class KeyTallies:
    """Tallies per partition key, counted up message by message."""

    def __init__(self) -> None:
        self._messages: dict[str, int] = {}
        self._checksums: dict[str, int] = {}

    def add(self, key: str, message_id: str, body: bytes) -> None:
        self._messages[key] = self._messages.get(key, 0) + 1
        self._checksums[key] = self._checksums.get(key, 0) + fingerprint(message_id, body)

    def result(self) -> dict[str, Tally]:
        return {key: Tally(count, self._checksums[key] % CHECKSUM_MODULUS) for key, count in self._messages.items()}

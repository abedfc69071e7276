"""The packed form of a grant that its receiver may ask for again (``ReceiveRequestAttemptId`` of SQS)."""

from collections.abc import Sequence
from struct import error, unpack


def pack_attempt(granted_ms: int, positions: Sequence[int]) -> bytes:
    """Pack the time of a grant and its positions, in the order of the answer."""
    return b"".join(number.to_bytes(8, "big") for number in (granted_ms, *positions))


def unpack_attempt(packed: bytes) -> tuple[int, list[int]]:
    """Return what `pack_attempt` has packed; no positions for any other bytes."""
    try:
        granted_ms, *positions = unpack(f">{len(packed) // 8}Q", packed)
    except (error, ValueError):
        return 0, []
    return granted_ms, positions

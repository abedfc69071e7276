"""Slots: the fixed number of classes into which keys are hashed (D7).

```text
 slot = top 14 bits of BLAKE2b-64(UTF-8 of the key)          0 .. 16383
```

The function is frozen (vectors in the tests). A key may hold lone surrogates, which JSON can express. They are hashed
unchanged, so that the function is total.
"""

from collections.abc import Iterable
from hashlib import blake2b

SLOT_BITS = 14
SLOT_COUNT = 1 << SLOT_BITS

_DIGEST_BYTES = 8
_SPARE_BITS = 16 - SLOT_BITS

Run = tuple[int, int]
"""Neighbouring slots: the first and the last."""


def slot_for_key(key: str) -> int:
    """Return the slot of a partition key, 0 .. `SLOT_COUNT` - 1."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return (digest[0] << 8 | digest[1]) >> _SPARE_BITS


def runs_of(slots: Iterable[int]) -> list[Run]:
    """Return ascending slots as runs."""
    runs: list[Run] = []
    for slot in slots:
        if runs and runs[-1][1] == slot - 1:
            runs[-1] = (runs[-1][0], slot)
        else:
            runs.append((slot, slot))
    return runs


def slots_in(runs: Iterable[Run]) -> Iterable[int]:
    """Iterate over the slots of runs."""
    return (slot for first, last in runs for slot in range(first, last + 1))

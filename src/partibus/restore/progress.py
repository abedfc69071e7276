"""The progress of a restore: a small file, replaced as a whole after each run of messages that the broker has stored.

An interrupted restore goes on from there. It repeats the messages that were sent but not answered: at most one run of
one sub-queue.
"""

import json
from pathlib import Path

from partibus.durable import replace_file
from partibus.errors import InvalidOperation


class Progress:
    """Next positions by partition and sub-queue, of one restore."""

    def __init__(self, path: Path, restore: dict[str, str]) -> None:
        """Read the file at ``path``, if it exists.

        ``restore`` names the source and the destination. Raises `InvalidOperation` when the file belongs to another
        restore or is no progress file.
        """
        self._path = path
        self._document: dict[str, object] = dict(restore)
        self._next: dict[str, int] = {}
        self.sent = 0
        """Messages sent, in earlier runs too."""
        if path.exists():
            self._read(restore)

    @property
    def begun(self) -> bool:
        """Whether an earlier run has sent something."""
        return bool(self._next)

    def next_pos(self, partition_id: int, kind: int) -> int:
        """Return the position to go on from."""
        return self._next.get(f"{partition_id}/{kind}", 0)

    def note(self, partition_id: int, kind: int, next_pos: int, sent: int) -> None:
        """Record that everything below ``next_pos`` is stored in its new place.

        ``sent`` messages more than before were sent.
        """
        self._next[f"{partition_id}/{kind}"] = next_pos
        self.sent += sent
        document = self._document | {"sent": self.sent, "next": self._next}
        replace_file(self._path, json.dumps(document, indent=2).encode())

    def _read(self, restore: dict[str, str]) -> None:
        try:
            found = json.loads(self._path.read_text("utf-8"))
            is_ours = all(found.get(key) == value for key, value in restore.items())
            self.sent = int(found["sent"])
            self._next = {str(place): int(pos) for place, pos in found["next"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidOperation(
                f"{self._path} is no progress of a restore ({error}). Give another file, or take it away."
            ) from error
        if not is_ours:
            raise InvalidOperation(
                f"{self._path} is the progress of another restore. Give another file, or take it away to begin anew."
            )

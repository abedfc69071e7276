"""File descriptors of the process: as many as the system lets it have, and what of them is for connections."""

import logging
import os
import resource
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_MOST: Final = 1 << 20
"""The bound where the system sets none: the usual one of a Linux process."""
_PER_STORE: Final = 8
"""The descriptors of a store: its file, log and shared memory, for writer and readers. 6 were counted; a backup takes 2
more.
"""
_OTHERS: Final = 64
"""The catalog, telemetry, modules that are loaded late, other brokers, pipes: 20 were counted."""
_QUEUE_MAX: Final = 512
_WARN_BELOW: Final = 512


def raise_limit() -> int:
    """Let the process have as many as it may. Return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


class Share:
    """The shares of the descriptors by use."""

    def __init__(self, limit: int, stores: int, listeners: int) -> None:
        """Divide ``limit`` descriptors.

        ``stores``: how many this broker may come to own. ``listeners``: sockets that take connections.
        """
        own = max(_open_now(), stores * _PER_STORE) + _OTHERS
        room = max(limit - own, limit // 4)
        self.queue = max(8, min(_QUEUE_MAX, room // 8))
        """Connections that the system holds for a listener until it accepts them: they may come all at once."""
        self.handshakes = max(8, room // 8)
        """TLS handshakes that may be under way at a listener."""
        self.connections = max(8, room - listeners * self.queue)
        if self.connections < _WARN_BELOW:
            log.warning(
                "the process may have %d files open: %d are for stores and other files: at most %d connections can be "
                "there at a time; raise the limit (ulimit -n, or LimitNOFILE of systemd)",
                limit,
                own,
                self.connections,
            )


def _open_now() -> int:
    """Return the number of open descriptors; an estimate where the system does not tell."""
    try:
        return len(os.listdir(Path("/proc/self/fd")))
    except OSError:
        return _OTHERS

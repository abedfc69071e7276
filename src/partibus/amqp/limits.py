"""Every bound of the engine in one place; all are settable when a connection is made."""

from __future__ import annotations

import sys

from msgspec import Struct

from partibus.amqp.codec.decoder import MAX_NESTING


class Limits(Struct, frozen=True, kw_only=True):
    """What a peer may make us hold. Sizes are bytes, windows are frames, counts are counts.

    A peer that breaks `channel_max` or `partial_bytes_max` loses its connection; the others hold back or
    refuse one link or one message.
    """

    max_frame_size: int = 65_536
    """Advertised for input, and the most that we put into one frame ourselves."""
    channel_max: int = 4_999
    """Highest channel advertised; one more than this many sessions may exist at a time."""
    sessions_max: int | None = None
    """Sessions that may exist at a time where fewer are taken than advertised; None: as advertised."""
    handle_max: int = 255
    """Highest handle advertised. Clients do not check it, so only `links_max` is enforced."""
    links_max: int = 1_024
    """Links of one connection; a further attach is refused, and twice as many end the connection."""
    incoming_window: int = 5_000
    """Transfer frames that a peer may send before we ask for more."""
    outgoing_window: int = 5_000
    """Stated to the peer, as the protocol wants a number; nothing depends on it."""
    max_unsettled: int = 10_000
    """Unsettled incoming deliveries of a session from which on its window is not opened again."""
    max_message_size: int = 1_048_576
    """Default of a link's largest message; a larger one is rejected without being kept."""
    partial_bytes_max: int = 16_777_216
    """Bytes of incomplete deliveries on all links of a connection. Two of the largest message that any link may bring
    have room in any case."""
    pending_bytes_max: int = 1_048_576
    """Bytes of deliveries that wait in one session for the peer's window."""
    nesting_max: int = MAX_NESTING
    """Levels of compound values."""
    performatives_at_once: int | None = None
    """Frames other than transfers and dispositions that one call of `Connection.receive_data` reads; what is behind
    them waits for the next call (`Connection.more_to_read`). None: all."""
    frames_at_once: int = sys.maxsize
    """Frames of any kind that one call of `Connection.receive_data` reads; the rest waits likewise."""
    ids_at_once: int | None = None
    """Deliveries that the dispositions of one call of `Connection.receive_data` may name, or have to be looked among;
    the rest waits likewise. None: any number."""
    idle_timeout_ms: int = 240_000
    """Advertised; a connection that is silent for longer is closed. 0: never."""

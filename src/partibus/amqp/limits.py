"""Every bound of the engine; all can be set when a connection is made."""

from __future__ import annotations

import sys

from msgspec import Struct

from partibus.amqp.codec.decoder import MAX_NESTING


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds on what a peer can make us hold: sizes in bytes, windows in frames, others in units.

    A peer that breaks `channel_max` or `partial_bytes_max` loses its connection. The other bounds delay the peer, or
    refuse one link or one message.
    """

    max_frame_size: int = 65_536
    """The advertised maximum for input, and the largest frame that we send."""
    channel_max: int = 4_999
    """The highest advertised channel, which allows one more session than this number."""
    sessions_max: int | None = None
    """The number of concurrent sessions if it is less than advertised; None means as advertised."""
    handle_max: int = 255
    """The highest advertised handle. Clients do not check it, so only `links_max` is enforced."""
    links_max: int = 1_024
    """The number of links of one connection. A further attach is refused; twice as many end the connection."""
    incoming_window: int = 5_000
    """Transfer frames that a peer may send before we reopen the window."""
    outgoing_window: int = 5_000
    """The value stated to the peer, because the protocol requires one; it has no effect."""
    max_unsettled: int = 10_000
    """The number of unsettled incoming deliveries past which a session's window stays closed."""
    max_message_size: int = 1_048_576
    """The default of a link's largest message; a larger one is rejected without being stored."""
    partial_bytes_max: int = 16_777_216
    """Bytes of incomplete deliveries on all links of a connection. It always allows two of the largest message of any
    link.
    """
    pending_bytes_max: int = 1_048_576
    """Bytes of deliveries that wait in one session for the peer's window."""
    nesting_max: int = MAX_NESTING
    """The nesting depth of compound values."""
    performatives_at_once: int | None = None
    """The number of frames other than transfers and dispositions that one call of `Connection.receive_data` reads.
    Later ones wait for the next call (`Connection.more_to_read`). None means all.
    """
    frames_at_once: int = sys.maxsize
    """The number of frames of any kind that one call of `Connection.receive_data` reads; later ones wait likewise."""
    ids_at_once: int | None = None
    """The number of deliveries that the dispositions of one call of `Connection.receive_data` may name or search; later
    ones wait likewise. None means any number.
    """
    decoded_at_once: int | None = None
    """The bytes of performatives that one call of `Connection.receive_data` decodes, but for transfers and dispositions
    of the usual form; later ones wait likewise. The frame that reaches the number is still read. None means any number.
    """
    idle_timeout_ms: int = 240_000
    """The advertised idle time-out, after which a silent connection is closed; 0 means never."""

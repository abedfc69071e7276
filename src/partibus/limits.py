"""One table of limits (D24): every bound on what a peer, a client or a backlog can make the broker hold."""

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB

EXPRESS_BOUND_MS = 3_000
"""Default loss bound of an express entity (row C22): the service writes what is older than "a few seconds"."""


class PartitionLimits(Struct, frozen=True):
    """Bounds on what one partition keeps in memory."""

    window_entries: int = 2048
    """Entries read ahead of the receivers. At 30,000 messages/s and a commit every 5 ms, 150 arrive per commit; the
    window holds a dozen commits so that reading ahead hides the time a page takes. Measured in ADR 0002."""
    window_bytes: int = 2 * MIB
    """Stored bytes read ahead; whichever of the two bounds is met first counts."""
    session_window_entries: int = 256
    """As above, for each session that is held: there may be thousands."""
    session_window_bytes: int = 256 * KIB
    page_entries: int = 1024
    page_bytes: int = MIB
    locked_body_max: int = 4 * KIB
    """Bodies up to this size stay in memory while their message is locked; larger ones are read again when needed."""
    peek_bytes: int = 256 * KIB
    """One peek answers no more than this (row A8)."""
    scan_ids: int = 5_000
    """Message ids that one load brings when the filter for duplicates is filled."""
    scan_sessions: int = 256
    """Names of sessions that one load brings."""


class StoreLimits(Struct, frozen=True):
    """Bounds on what waits for one messaging store."""

    queued_operations: int = 5_000
    queued_bytes: int = 16 * MIB
    hold_ms: float = 2.0
    """How long batched store access holds a write of a client that has more under way (rows C13, C14). The service says
    up to 20 ms; longer than a commit takes gained nothing here (ADR 0002)."""
    hold_operations: int = 64
    """With so many operations pending the commit is worth its sync: it starts at once."""
    lazy_ms: float = 20.0
    """Longest time that rows nobody waits for wait for a commit to travel with (rows C13, C14: up to 20 ms)."""
    lazy_operations: int = 1_000
    """With so many of them the commit starts without waiting."""
    clock_ahead_ms: int = 300_000
    """A store that was used at a later time than this machine's clock shows is not opened when the difference is
    larger: one of the two clocks is wrong. Locks in it may last that much longer (ADR 0021)."""
    express_bytes: int = 128 * MIB
    """Stored bytes of express messages that only memory has, of all stores that a broker owns; past it a partition
    writes what it has at once. 50,000 messages of 1 KiB a second for two seconds and a half (D18)."""
    partition_bytes: int = 128 * MIB
    """Memory of partitions in use, of all stores that a broker owns: windows above all, 4 MiB at most for each
    sub-queue. Past it those used least recently go cold (D25). Bodies under lock are not counted: see `UnitLimits`."""


class ConnectionLimits(Struct, frozen=True):
    """Bounds on what one AMQP connection can take."""

    frame_bytes_max: int = 64 * KIB
    channel_max: int = 4999
    handle_max: int = 4999
    unsettled_max: int = 5_000
    """Deliveries per link that the peer has not settled; no more are sent past it."""
    incoming_bytes: int = 2 * MIB
    outgoing_bytes: int = MIB
    """Unsent bytes past which nothing more is delivered to the peer."""
    unsent_bytes_max: int = 8 * MIB
    """Unsent bytes past which nothing more is read from the peer, which asks and does not take the answers. Room for
    the largest answer of a management node: a peer that is only slow must not be stopped in the middle of a send."""
    links_max: int = 5_000
    """Links of one connection, on all its sessions."""
    link_credit: int = 1_000
    idle_timeout_ms: int = 240_000
    handshake_timeout_s: float = 20.0
    unclaimed_s: float = 120.0
    """Time without a valid claim after which the broker closes a connection, looked at every 15 s; the
    service waits for 20 s. It takes no place among the connections of its namespace."""
    unclaimed_bytes: int = 64 * KIB
    """Bytes of incomplete deliveries, of waiting requests and of unsent answers that the broker holds for a connection
    without a claim, each. Such a connection can use `$cbs` alone, whose messages have half of it."""
    unclaimed_links: int = 64
    """Links, and sessions, of a connection without a claim. Clients attach two links to `$cbs` in one session."""
    websocket_frame_bytes_max: int = 4 * MIB
    """Of one frame of a websocket, which is held until all of it is here. Clients make one of each AMQP frame, or of
    what they write at once."""


class TransactionLimits(Struct, frozen=True):
    """Bounds on the transactions of one connection (sections 8 and 11.2 of the dialect)."""

    open_max: int = 1_000
    """Transactions that are not discharged yet; one without operations takes less than 1 KiB."""
    bytes_max: int = 32 * MIB
    """What the open transactions of a connection hold together: room for one of 100 messages of 256 KiB."""
    duration_ms: int = 120_000
    """From the first operation to the commit."""


class PeerLimits(Struct, frozen=True):
    """Bounds on one channel between two brokers (ADR 0006)."""

    unanswered_bytes: int = 4 * MIB
    """Messages for one store that its owner has not answered; a quarter of what a store may have waiting. At 50,000
    messages of 1 KiB a second and 10 ms until the answer, half a megabyte is on its way."""
    unsent_reading_bytes: int = MIB
    """Answers that a peer does not take, past which none of its questions is read."""
    unsent_bytes_max: int = 512 * MIB
    """Unsent bytes past which a peer is lost: room for a few messages of 100 MiB, each to a store of its own. Who
    answers stops reading long before; who asks is bounded by the credit of its clients and by ``unanswered_bytes``."""
    handshake_s: float = 5.0
    heartbeat_s: float = 1.0
    silence_s: float = 5.0
    """A peer that says nothing for so long is lost: a machine without power, a cable. A process that ends is noticed
    at once by its connection."""


class HttpLimits(Struct, frozen=True):
    """Bounds on what one HTTP connection can take, and on how many there are in a process."""

    connections_max: int = 2_000
    """Those that became websockets count no longer: they are AMQP connections."""
    head_bytes_max: int = 32 * KIB
    """Request line and headers; tokens and supplementary ones are about 1 KiB each."""
    body_bytes_max: int = 4 * MIB
    """Room for a batch of 1 MiB in JSON with its bodies in base64."""
    head_s: float = 10.0
    """From the first byte, or the connection, to the last header."""
    body_s: float = 60.0
    answer_s: float = 30.0
    """How long an answer may be too much for a client that takes nothing of it."""
    keep_alive_s: int = 30


class AdmissionLimits(Struct, frozen=True):
    """Bounds on the connections of one broker process that have shown no claim, over AMQP, websockets and HTTP."""

    unclaimed_max: int = 2_000
    """In all, and half of the file descriptors that are for connections at most; past it the oldest one is dropped. A
    client shows its claim within half a second, so 4,000 clients may come in a second. One holds 40 KiB."""
    unclaimed_of_address_max: int = 500
    """Of one address, or of one network of 64 bits. 1,000 clients behind one address may come in a second."""


class TlsLimits(Struct, frozen=True):
    """Bounds on handshakes under way at one listener."""

    handshakes_max: int = 256
    """With one more the oldest ends: a good one takes some milliseconds, so the oldest is one that never will be."""
    handshake_s: float = 10.0
    goodbye_s: float = 5.0
    """For the peer's part of the end of a connection."""


class UnitLimits(Struct, frozen=True):
    """What messaging units are made of (row R11, ADR 0020)."""

    per_broker: int = 4
    """Units of one broker process: each is such a part of its time and of its memory."""
    memory_bytes: int = 1024 * MIB
    """Of one broker process for what the clients of namespaces make it hold: input, unsent output, bodies under lock.
    Not the windows of partitions: those are bounded, and who waits for them to be smaller would wait for receivers that
    are withheld. All units of a broker could hold the bodies of 250,000 messages of 4 KiB that nobody settles."""


class Limits(Struct, frozen=True):
    """All limits of a broker."""

    partition: PartitionLimits = PartitionLimits()
    store: StoreLimits = StoreLimits()
    connection: ConnectionLimits = ConnectionLimits()
    transaction: TransactionLimits = TransactionLimits()
    peer: PeerLimits = PeerLimits()
    http: HttpLimits = HttpLimits()
    tls: TlsLimits = TlsLimits()
    admission: AdmissionLimits = AdmissionLimits()
    units: UnitLimits = UnitLimits()
    cache_ms: int = 5_000
    """Longest life of a reservation in a front end's cache (D10)."""
    cache_idle_ms: int = 250
    """How long a front end keeps reservations of which nobody asks for any, where other brokers could have them: a
    receiver that asks for one message after another profits from the cache as long as it comes back within that."""
    cache_locks: bool = False
    """Lock what a front end caches, as the service does, instead of reserving it (row P14)."""
    message_bytes_max: int = 256 * KIB
    """On a link that leads to no entity and no node: a coordinator's. Entities have sizes of their own, and namespaces
    the limits of their tier (`partibus.namespace.tiers`)."""

"""The table of limits (D24): every bound on what a peer, a client or a backlog can make the broker hold."""

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB

CATALOG_NUMBERS_SKIPPED = 16_384
"""The numbers of changes, entities, namespaces and partitions that are skipped when a catalog has lost changes: more
than were given out in those. A namespace has 2,097,151 partition rows over its life.
"""
EXPRESS_BOUND_MS = 3_000
"""Default loss bound of an express entity (row C22): the service writes messages older than "a few seconds"."""


class PartitionLimits(Struct, frozen=True):
    """Bounds on what one partition keeps in memory."""

    window_entries: int = 2048
    """The number of entries read ahead of the receivers. At 30,000 messages/s and a commit every 5 ms, 150 arrive per
    commit. The window holds a dozen commits, so that reading ahead hides the time to read a page. Measured in ADR 0002.
    """
    window_bytes: int = 2 * MIB
    """The number of stored bytes read ahead. The bound that is met first counts."""
    session_window_entries: int = 256
    """The number of entries read ahead for each held session; there may be thousands of sessions."""
    session_window_bytes: int = 256 * KIB
    page_entries: int = 1024
    page_bytes: int = MIB
    locked_body_max: int = 4 * KIB
    """The largest body that stays in memory while its message is locked. The partition reads larger ones again when
    needed.
    """
    peek_bytes: int = 256 * KIB
    """The largest answer to one peek (row A8)."""
    scan_ids: int = 5_000
    """The number of message ids that one load reads to fill the duplicate filter."""
    scan_sessions: int = 256
    """The number of session names that one load reads."""


class StoreLimits(Struct, frozen=True):
    """Bounds on the operations that wait for one messaging store."""

    queued_operations: int = 5_000
    queued_bytes: int = 16 * MIB
    hold_ms: float = 2.0
    """How long batched store access holds a write of a client that has more requests in flight (rows C13, C14). The
    service says up to 20 ms. Holding for longer than a commit takes gained no throughput here (ADR 0002).
    """
    hold_operations: int = 64
    """The number of pending operations at which a commit starts at once, because it is worth its sync."""
    gather_rounds: int = 6
    """The rounds of the loop without another row after which a commit stops waiting for clients that the last one has
    answered.
    """
    lazy_ms: float = 20.0
    """The longest time that rows without waiters wait for a commit to join (rows C13, C14: up to 20 ms)."""
    lazy_operations: int = 1_000
    """The number of rows without waiters at which the commit starts without waiting."""
    clock_ahead_ms: int = 300_000
    """The largest lead of a store's last use over this machine's clock. Beyond it the broker does not open the store,
    because one of the two clocks is wrong. Locks in the store may last that much longer (ADR 0021).
    """
    express_bytes: int = 128 * MIB
    """Stored bytes of express messages that only memory holds, over all stores that a broker owns. Past it a partition
    writes its messages at once. The bound holds 50,000 messages of 1 KiB a second for two and a half seconds (D18).
    """
    partition_bytes: int = 128 * MIB
    """Memory of loaded partitions, over all stores that a broker owns. Most of it is windows, at most 4 MiB for each
    sub-queue. Past it the broker unloads the least recently used partitions (D25). Bodies of locked messages do not
    count: see `UnitLimits`.
    """


class ConnectionLimits(Struct, frozen=True):
    """Bounds on the resources that one AMQP connection can use."""

    frame_bytes_max: int = 64 * KIB
    channel_max: int = 4999
    handle_max: int = 4999
    unsettled_max: int = 5_000
    """The number of unsettled deliveries per link past which the broker sends no further ones."""
    incoming_bytes: int = 2 * MIB
    outgoing_bytes: int = MIB
    """Unsent bytes past which the broker delivers no further messages to the peer."""
    unsent_bytes_max: int = 8 * MIB
    """Unsent bytes past which the broker stops reading from a peer that sends requests without taking the answers. The
    bound has room for the largest answer of a management node: a peer that is only slow must not be stopped in the
    middle of a send.
    """
    links_max: int = 5_000
    """The number of links of one connection, on all its sessions."""
    link_credit: int = 1_000
    idle_timeout_ms: int = 240_000
    handshake_timeout_s: float = 20.0
    unclaimed_s: float = 120.0
    """Time without a valid claim after which the broker closes a connection, checked every 15 s. The service waits for
    20 s. Such a connection does not count against the connection limit of its namespace.
    """
    unclaimed_bytes: int = 64 * KIB
    """Bytes that the broker holds for a connection without a claim. The bound applies separately to incomplete
    deliveries, waiting requests and unsent answers. Such a connection can use only `$cbs`, whose messages may have half
    of it.
    """
    unclaimed_links: int = 64
    """The number of links, and of sessions, of a connection without a claim. Clients attach two links to `$cbs` in one
    session.
    """
    websocket_frame_bytes_max: int = 4 * MIB
    """The size of one websocket frame, which the broker buffers until it is complete. Clients send one frame for each
    AMQP frame, or for each write.
    """


class TransactionLimits(Struct, frozen=True):
    """Bounds on the transactions of one connection (sections 8 and 11.2 of the dialect)."""

    open_max: int = 1_000
    """The number of open transactions. One without operations takes less than 1 KiB."""
    bytes_max: int = 32 * MIB
    """Bytes held by all open transactions of a connection: room for one of 100 messages of 256 KiB."""
    duration_ms: int = 120_000
    """The longest time from the first operation to the commit."""


class PeerLimits(Struct, frozen=True):
    """Bounds on one channel between two brokers (ADR 0006)."""

    unanswered_bytes: int = 4 * MIB
    """Bytes of messages for one store that its owner has not answered: a quarter of what may wait for a store. At
    50,000 messages of 1 KiB a second and 10 ms until the answer, half a megabyte is in flight.
    """
    unsent_reading_bytes: int = MIB
    """Unsent answers past which the broker reads no further requests from a peer that does not take them."""
    unsent_bytes_max: int = 512 * MIB
    """Unsent bytes past which the broker drops a peer: room for a few messages of 100 MiB, each to a store of its own.
    The answering side stops reading long before. The credit of the asking side's clients and ``unanswered_bytes`` bound
    the asking side.
    """
    handshake_s: float = 5.0
    heartbeat_s: float = 1.0
    silence_s: float = 5.0
    """Silence after which a peer is considered lost, because of a power or cable failure. When a process ends, its
    connection closes and the broker notices at once.
    """


class HttpLimits(Struct, frozen=True):
    """Bounds on one HTTP connection, and on the number of them in a process."""

    connections_max: int = 2_000
    """The number of HTTP connections. Connections upgraded to websockets do not count: they are AMQP connections."""
    head_bytes_max: int = 32 * KIB
    """The size of the request line and headers. Tokens and supplementary tokens are about 1 KiB each."""
    body_bytes_max: int = 8 * MIB
    """The size of a body: room for an SQS batch of 1 MiB whose texts are all JSON escapes of six bytes."""
    head_s: float = 10.0
    """The longest time from the connection, or the first byte, to the last header."""
    body_s: float = 60.0
    answer_s: float = 30.0
    """How long unsent output may fill the transport's buffer before the broker drops the connection."""
    keep_alive_s: int = 30


class AdmissionLimits(Struct, frozen=True):
    """Bounds on the connections of one broker process without a claim, over AMQP, websockets and HTTP."""

    unclaimed_max: int = 2_000
    """The number of connections without a claim, and at most half of the file descriptors for connections. Past it the
    broker drops the oldest one. A client shows its claim within half a second, so 4,000 clients can connect in a
    second. One holds 40 KiB.
    """
    unclaimed_of_address_max: int = 500
    """The number of such connections from one address, or from one network of 64 bits. 1,000 clients behind one address
    can connect in a second.
    """
    body_bytes_free: int = 64 * KIB
    """The size of the part of a request's body that counts for nothing."""
    bodies_bytes_max: int = 64 * MIB
    """Bytes of larger bodies of requests over HTTP and SQS, over all these connections. Past it the broker drops the
    one that has held such a body for the longest time. A client shows its claim with the last byte of its first
    request, so 64 clients can send the largest batch of SQS at the same moment.
    """


class TlsLimits(Struct, frozen=True):
    """Bounds on handshakes in progress at one listener."""

    handshakes_max: int = 256
    """The number of handshakes past which the oldest one ends. A healthy handshake takes some milliseconds, so the
    oldest is one that will never complete.
    """
    handshake_s: float = 10.0
    goodbye_s: float = 5.0
    """The time allowed for the peer's part of closing a connection."""


class UnitLimits(Struct, frozen=True):
    """The composition of messaging units (row R11, ADR 0020)."""

    per_broker: int = 4
    """The number of units in one broker process. Each is an equal share of its time and memory."""
    memory_bytes: int = 1024 * MIB
    """Memory of one broker process for what the clients of namespaces make it hold: input, unsent output, bodies of
    locked messages. The windows of partitions do not count. They are bounded, and waiting for them to shrink would mean
    waiting for receivers that are withheld. All units of a broker can together hold the bodies of 250,000 unsettled
    messages of 4 KiB.
    """


class ElasticLimits(Struct, frozen=True):
    """The capacity of a partition, and when the number of partitions changes."""

    requests_per_s: int = 300
    messages_per_s: int = 3_000
    split_at: float = 0.8
    window_ms: int = 10_000
    merge_below: float = 0.5
    calm_ms: int = 300_000
    cool_ms: int = 15_000
    """The least time between two changes."""
    hot_share: float = 0.5
    """The share of a partition's load from which on one slot is hot, and splitting can't help."""


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
    elastic: ElasticLimits = ElasticLimits()
    cache_ms: int = 5_000
    """The longest life of a reservation in a front end's cache (D10)."""
    cache_idle_ms: int = 250
    """How long a front end keeps reservations without demand while other brokers could have them. A receiver that asks
    for one message after another benefits from the cache if it comes back within this time.
    """
    cache_locks: bool = False
    """Whether a front end locks the messages in its cache, as the service does, instead of reserving them (row P14)."""
    message_bytes_max: int = 256 * KIB
    """The largest message on a link without an entity or node: a link to a coordinator. Entities have sizes of their
    own, and namespaces have the limits of their tier (`partibus.namespace.tiers`).
    """

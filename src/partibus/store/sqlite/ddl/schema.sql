-- A messaging store (D13). How integer keys are put together: partibus.partition.protocol.keys.
-- No constraint here may depend on what a client sends: a commit carries the messages of many (D11).

CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format_version INTEGER NOT NULL,
    store_id TEXT NOT NULL,             -- the name the file was made for, e.g. store-07
    created_ms INTEGER NOT NULL,
    is_copy INTEGER NOT NULL DEFAULT 0  -- 1: a copy that nobody has opened; whoever does begins a generation
);

-- The generations that the store has gone through (partibus.partition.protocol.generations).
CREATE TABLE generation (
    first INTEGER PRIMARY KEY,          -- the lowest number that a partition has given out in it
    id INTEGER NOT NULL,                -- 0: of a store that was made by a format without generations
    from_ms INTEGER NOT NULL            -- time of the last commit before it: what was stored later is not there
);

-- What partitions would have given out next when a generation began.
CREATE TABLE left_off (
    partition_row INTEGER NOT NULL,
    first INTEGER NOT NULL,             -- of the generation that began
    next_sequence INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    PRIMARY KEY (partition_row, first)
) WITHOUT ROWID;

-- Who may commit (D19). Each commit updates this row first; no row touched, no commit.
CREATE TABLE owner (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    broker TEXT NOT NULL,
    incarnation TEXT NOT NULL,          -- one run of the broker's process
    epoch INTEGER NOT NULL,             -- rises with every take-over
    until_ms INTEGER NOT NULL,          -- end of the lease; 0: no lease, the lock file beside the store decides
    last_commit INTEGER NOT NULL,
    highest_ms INTEGER NOT NULL DEFAULT 0   -- the latest time that an owner's clock has shown at a commit (D26)
);

CREATE TABLE partition (
    "row" INTEGER PRIMARY KEY,
    next_sequence INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    session_state_bytes INTEGER NOT NULL DEFAULT 0
);

-- Partitions of deleted entities whose entries and bodies are still being removed.
CREATE TABLE dropped_partition (
    "row" INTEGER PRIMARY KEY
);

CREATE TABLE subqueue (
    key INTEGER PRIMARY KEY,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

CREATE TABLE body (
    key INTEGER PRIMARY KEY,
    data BLOB NOT NULL                  -- the stored form of the message
);

CREATE TABLE entry (
    key INTEGER PRIMARY KEY,
    body INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    enqueued_ms INTEGER NOT NULL,
    state INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL,
    session TEXT,                       -- only of an entity that requires sessions
    due_ms INTEGER
);

-- Peek goes by sequence number. In an active sub-queue (kind bits 0) that is the position, so the primary key serves
-- and the hot path pays for no index; elsewhere an entry keeps its old number at a new position. What has left and is kept
-- for cursors is not peeked at.
CREATE INDEX entry_by_sequence ON entry (key >> 40, sequence) WHERE ((key >> 40) & 3) <> 0 AND state < 16;

-- A session's messages page apart (D3), and sessions with messages are found by skipping from name to name. Partial, so
-- that entries without a session, or without a time when they are due, pay nothing.
CREATE INDEX entry_by_session ON entry (key >> 40, state, session) WHERE session IS NOT NULL;

CREATE INDEX entry_by_due ON entry (key >> 40, state, due_ms) WHERE due_ms IS NOT NULL;

-- What a topic stored once for several subscriptions goes with the last of them (partibus.partition.protocol.keys: bit 38 of a body's
-- key). Whoever removes one looks here for others.
CREATE INDEX entry_by_shared_body ON entry (body) WHERE ((body >> 38) & 1) <> 0;

CREATE TABLE lock_batch (
    lock_key INTEGER NOT NULL,
    first_pos INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    bitmap BLOB NOT NULL,               -- bit i, little-endian: first_pos + i is locked
    PRIMARY KEY (lock_key, first_pos)
) WITHOUT ROWID;

-- What the holder of a session last set. A state of 256 KiB must not make the way to its neighbours longer, so names are
-- looked up in an index and the state stands behind what a list of sessions asks for.
CREATE TABLE session_state (
    id INTEGER PRIMARY KEY,
    partition_row INTEGER NOT NULL,
    session TEXT NOT NULL,
    updated_ms INTEGER NOT NULL,
    state BLOB NOT NULL
);

CREATE INDEX session_state_by_name ON session_state (partition_row, session, updated_ms);

-- Message ids of the duplicate detection, in buckets of time: old ones go by range, one is found by its key.
CREATE TABLE duplicate_id (
    partition_row INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    id BLOB NOT NULL,
    accepted_ms INTEGER NOT NULL,
    original BLOB,                      -- NULL, or sequence counter and tag of the message, for answers about duplicates
    PRIMARY KEY (partition_row, bucket, id)
) WITHOUT ROWID;

-- How far a partition has what another one forwards to it (D15): what comes again at or below that position is dropped.
CREATE TABLE inbound_mark (
    partition_row INTEGER NOT NULL,
    source INTEGER NOT NULL,            -- sub-queue that it comes from, and generation: origin_key()
    pos INTEGER NOT NULL,
    PRIMARY KEY (partition_row, source)
) WITHOUT ROWID;

-- Requests of other brokers that commits have answered, for a short while (D15): who lost its owner before the answer
-- came asks the next one.
CREATE TABLE executed (
    number INTEGER PRIMARY KEY,
    asker TEXT NOT NULL,                -- one run of a broker
    at_ms INTEGER NOT NULL,             -- by the clock of the owner that committed
    requests BLOB NOT NULL              -- (request, first sequence), 64 bits each, little-endian
);

-- Named readers of a sub-queue (D14), and what is kept for them: an entry that has left while a cursor stood below it
-- stays, with 16 and its fate as its state.
CREATE TABLE cursor (
    subqueue INTEGER NOT NULL,          -- key of the sub-queue
    name TEXT NOT NULL,
    position INTEGER NOT NULL,
    fate_position INTEGER NOT NULL,     -- -1: it does not read fates
    complete_from INTEGER NOT NULL,
    bound_bytes INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    moved_ms INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,          -- end of the exclusive lease; 0: there is none
    PRIMARY KEY (subqueue, name)
) WITHOUT ROWID;

-- What entries that have left take up, as subqueue says of the others.
CREATE TABLE retained (
    key INTEGER PRIMARY KEY,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

-- The log of fates: a line for each message that has left a sub-queue whose fates a cursor reads.
CREATE TABLE fate (
    key INTEGER PRIMARY KEY,            -- as an entry's, with the number of the line in place of the position
    pos INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    fate INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL
);

-- What a sink has stored and may send again. By batch first: ids of a batch are written, and forgotten, together.
CREATE TABLE sink_id (
    partition_row INTEGER NOT NULL,
    sink INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (partition_row, sink, batch, id)
) WITHOUT ROWID;

CREATE TABLE sink_batch (
    partition_row INTEGER NOT NULL,
    sink INTEGER NOT NULL,
    batch INTEGER NOT NULL,             -- committed last
    PRIMARY KEY (partition_row, sink)
) WITHOUT ROWID;

-- Who holds a session (D21).
CREATE TABLE session_lock (
    partition_row INTEGER NOT NULL,
    session TEXT NOT NULL,
    lock_id INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    holder TEXT NOT NULL,               -- the run of the broker that the holder is connected to
    PRIMARY KEY (partition_row, session)
) WITHOUT ROWID;

-- A messaging store in a schema of its own (D13). How integer keys are put together:
-- partibus.partition.protocol.keys. No constraint here may depend on what a client sends: a commit carries the messages of many
-- (D11). Names of sessions are their UTF-8 bytes: text can't hold a NUL, and bytes order as every other store does.
--
-- A queue's tables turn over all the time: vacuum begins after so many dead rows and not after a share of the table,
-- and does not rest in between. Messages are not compressed: they are read once, soon.

CREATE TABLE meta (
    id integer PRIMARY KEY CHECK (id = 1),
    format_version integer NOT NULL,
    store_id text NOT NULL,             -- what the broker calls it, e.g. store-07
    cluster text NOT NULL,              -- whose store it is: one data directory, or the brokers of one catalog
    created_ms bigint NOT NULL,
    home text NOT NULL DEFAULT ''       -- where the tables were made: of a restored dump they are other tables
);

-- The generations that the store has gone through (partibus.partition.protocol.generations).
CREATE TABLE generation (
    first bigint PRIMARY KEY,           -- the lowest number that a partition has given out in it
    id bigint NOT NULL,                 -- 0: of a store that was made by a format without generations
    from_ms bigint NOT NULL             -- time of the last commit before it: what was stored later is not there
);

-- What partitions would have given out next when a generation began.
CREATE TABLE left_off (
    partition_row bigint NOT NULL,
    first bigint NOT NULL,              -- of the generation that began
    next_sequence bigint NOT NULL,
    next_number bigint NOT NULL,
    PRIMARY KEY (partition_row, first)
);

-- Who may commit (D19). Each commit updates this row first; no row touched, no commit.
CREATE TABLE owner (
    id integer PRIMARY KEY CHECK (id = 1),
    broker text NOT NULL,
    incarnation text NOT NULL,          -- one run of the broker's process; in the application name of its connections
    epoch bigint NOT NULL,              -- rises with every take-over
    until_ms bigint NOT NULL,           -- end of the lease by this database's clock; 0: given back
    last_commit bigint NOT NULL,
    taken_at bigint NOT NULL,           -- last_commit when this epoch began: what the epoch before has got done
    highest_ms bigint NOT NULL DEFAULT 0    -- the latest time that an owner's clock has shown at a commit (D26)
) WITH (fillfactor = 10);

INSERT INTO owner (id, broker, incarnation, epoch, until_ms, last_commit, taken_at) VALUES (1, '', '', 0, 0, 0, 0);

CREATE TABLE partition (
    partition_row bigint PRIMARY KEY,
    next_sequence bigint NOT NULL,
    next_number bigint NOT NULL,
    session_state_bytes bigint NOT NULL
) WITH (fillfactor = 25);

-- Partitions of deleted entities whose entries and bodies are still being removed.
CREATE TABLE dropped_partition (
    partition_row bigint PRIMARY KEY
);

CREATE TABLE subqueue (
    key bigint PRIMARY KEY,
    messages bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 25);

CREATE TABLE body (
    key bigint PRIMARY KEY,
    data bytea NOT NULL                 -- the stored form of the message
) WITH (
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE entry (
    key bigint PRIMARY KEY,
    body bigint NOT NULL,
    sequence bigint NOT NULL,
    enqueued_ms bigint NOT NULL,
    state smallint NOT NULL,
    delivery_count bigint NOT NULL,
    session bytea,                      -- only of an entity that requires sessions
    due_ms bigint
) WITH (
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1
);

-- Peek goes by sequence number. In an active sub-queue (kind bits 0) that is the position, so the primary key serves
-- and the hot path pays for no index; elsewhere an entry keeps its old number at a new position. What has left and is kept
-- for cursors is not peeked at.
CREATE INDEX entry_by_sequence ON entry ((key >> 40), sequence, key) WHERE ((key >> 40) & 3) <> 0 AND state < 16;

-- A session's messages page apart (D3), and sessions with messages are found by skipping from name to name.
CREATE INDEX entry_by_session ON entry ((key >> 40), state, session, key) WHERE session IS NOT NULL;

CREATE INDEX entry_by_due ON entry ((key >> 40), state, due_ms, key) WHERE due_ms IS NOT NULL;

-- What a topic stored once for several subscriptions goes with the last of them (partibus.partition.protocol.keys: bit 38 of a body's
-- key). Whoever removes one looks here for others.
CREATE INDEX entry_by_shared_body ON entry (body) WHERE ((body >> 38) & 1) <> 0;

CREATE TABLE lock_batch (
    lock_key bigint NOT NULL,
    first_pos bigint NOT NULL,
    until_ms bigint NOT NULL,
    bitmap bytea NOT NULL,              -- bit i, little-endian: first_pos + i is locked
    PRIMARY KEY (lock_key, first_pos)
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- What the holder of a session last set.
CREATE TABLE session_state (
    partition_row bigint NOT NULL,
    session bytea NOT NULL,
    updated_ms bigint NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (partition_row, session)
);

-- Message ids of the duplicate detection, in buckets of time: old ones go by range, one is found by its key.
CREATE TABLE duplicate_id (
    partition_row bigint NOT NULL,
    bucket bigint NOT NULL,
    id bytea NOT NULL,
    accepted_ms bigint NOT NULL,
    original bytea,                     -- NULL, or sequence counter and tag of the message, for answers about duplicates
    PRIMARY KEY (partition_row, bucket, id)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- How far a partition has what another one forwards to it (D15): what comes again at or below that position is dropped.
CREATE TABLE inbound_mark (
    partition_row bigint NOT NULL,
    source bigint NOT NULL,            -- sub-queue that it comes from, and generation: origin_key()
    pos bigint NOT NULL,
    PRIMARY KEY (partition_row, source)
) WITH (fillfactor = 25);

-- Requests of other brokers that commits have answered, for a short while (D15): who lost its owner before the answer
-- came asks the next one.
CREATE TABLE executed (
    asker bytea NOT NULL,              -- one run of a broker, UTF-8
    at_ms bigint NOT NULL,             -- by the clock of the owner that committed
    requests bytea NOT NULL            -- (request, first sequence), 64 bits each, little-endian
);

-- Named readers of a sub-queue (D14), and what is kept for them: an entry that has left while a cursor stood below it
-- stays, with 16 and its fate as its state.
CREATE TABLE cursor (
    subqueue bigint NOT NULL,           -- key of the sub-queue
    name bytea NOT NULL,                -- UTF-8
    position bigint NOT NULL,
    fate_position bigint NOT NULL,      -- -1: it does not read fates
    complete_from bigint NOT NULL,
    bound_bytes bigint NOT NULL,
    created_ms bigint NOT NULL,
    moved_ms bigint NOT NULL,
    epoch bigint NOT NULL,
    until_ms bigint NOT NULL,           -- end of the exclusive lease; 0: there is none
    PRIMARY KEY (subqueue, name)
) WITH (fillfactor = 25);

-- What entries that have left take up, as subqueue says of the others.
CREATE TABLE retained (
    key bigint PRIMARY KEY,
    messages bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 25);

-- The log of fates: a line for each message that has left a sub-queue whose fates a cursor reads.
CREATE TABLE fate (
    key bigint PRIMARY KEY,             -- as an entry's, with the number of the line in place of the position
    pos bigint NOT NULL,
    sequence bigint NOT NULL,
    fate bigint NOT NULL,
    at_ms bigint NOT NULL,
    delivery_count bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- What a sink has stored and may send again.
CREATE TABLE sink_id (
    partition_row bigint NOT NULL,
    sink bigint NOT NULL,
    id bytea NOT NULL,
    batch bigint NOT NULL,
    PRIMARY KEY (partition_row, sink, id)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX sink_id_by_batch ON sink_id (partition_row, sink, batch, id);

CREATE TABLE sink_batch (
    partition_row bigint NOT NULL,
    sink bigint NOT NULL,
    batch bigint NOT NULL,              -- committed last
    PRIMARY KEY (partition_row, sink)
) WITH (fillfactor = 25);

-- Who holds a session (D21).
CREATE TABLE session_lock (
    partition_row bigint NOT NULL,
    session bytea NOT NULL,             -- UTF-8
    lock_id bigint NOT NULL,
    until_ms bigint NOT NULL,
    holder bytea NOT NULL,              -- the run of the broker that the holder is connected to; UTF-8
    PRIMARY KEY (partition_row, session)
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE body ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE session_state ALTER COLUMN state SET STORAGE EXTERNAL;

-- A messaging store in a schema of its own, format version 1 (D13). How integer keys are put together:
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
    created_ms bigint NOT NULL
);

-- Who may commit (D19). Each commit updates this row first; no row touched, no commit.
CREATE TABLE owner (
    id integer PRIMARY KEY CHECK (id = 1),
    broker text NOT NULL,
    incarnation text NOT NULL,          -- one run of the broker's process; in the application name of its connections
    epoch bigint NOT NULL,              -- rises with every take-over
    until_ms bigint NOT NULL,           -- end of the lease by this database's clock; 0: given back
    last_commit bigint NOT NULL,
    taken_at bigint NOT NULL            -- last_commit when this epoch began: what the epoch before has got done
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
-- and the hot path pays for no index; elsewhere an entry keeps its old number at a new position.
CREATE INDEX entry_by_sequence ON entry ((key >> 40), sequence, key) WHERE ((key >> 40) & 3) <> 0;

-- A session's messages page apart (D3), and sessions with messages are found by skipping from name to name.
CREATE INDEX entry_by_session ON entry ((key >> 40), state, session, key) WHERE session IS NOT NULL;

CREATE INDEX entry_by_due ON entry ((key >> 40), state, due_ms, key) WHERE due_ms IS NOT NULL;

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
    PRIMARY KEY (partition_row, bucket, id)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE body ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE session_state ALTER COLUMN state SET STORAGE EXTERNAL;

-- Format version 2 to 3, in a transaction of the caller's. What the tables mean: schema.sql.

DROP INDEX entry_by_sequence;

CREATE INDEX entry_by_sequence ON entry ((key >> 40), sequence, key) WHERE ((key >> 40) & 3) <> 0 AND state < 16;

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

CREATE TABLE retained (
    key bigint PRIMARY KEY,
    messages bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 25);

CREATE TABLE fate (
    key bigint PRIMARY KEY,             -- as an entry's, with the number of the line in place of the position
    pos bigint NOT NULL,
    sequence bigint NOT NULL,
    fate bigint NOT NULL,
    at_ms bigint NOT NULL,
    delivery_count bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

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

CREATE TABLE session_lock (
    partition_row bigint NOT NULL,
    session bytea NOT NULL,             -- UTF-8
    lock_id bigint NOT NULL,
    until_ms bigint NOT NULL,
    holder bytea NOT NULL,              -- the run of the broker that the holder is connected to; UTF-8
    PRIMARY KEY (partition_row, session)
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Format version 3 to 4, in a transaction of the caller's. What the tables mean: schema.sql.

DROP INDEX entry_by_sequence;

CREATE INDEX entry_by_sequence ON entry (key >> 40, sequence) WHERE ((key >> 40) & 3) <> 0 AND state < 16;

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

CREATE TABLE retained (
    key INTEGER PRIMARY KEY,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

CREATE TABLE fate (
    key INTEGER PRIMARY KEY,            -- as an entry's, with the number of the line in place of the position
    pos INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    fate INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    delivery_count INTEGER NOT NULL
);

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

CREATE TABLE session_lock (
    partition_row INTEGER NOT NULL,
    session TEXT NOT NULL,
    lock_id INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    holder TEXT NOT NULL,               -- the run of the broker that the holder is connected to
    PRIMARY KEY (partition_row, session)
) WITHOUT ROWID;

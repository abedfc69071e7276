-- A messaging store, format version 1 (D13). How integer keys are put together: partibus.partition.protocol.keys.
-- No constraint here may depend on what a client sends: a commit carries the messages of many (D11).

CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format_version INTEGER NOT NULL,
    store_id TEXT NOT NULL,             -- the name the file was made for, e.g. store-07
    created_ms INTEGER NOT NULL
);

-- Who may commit (D19). Each commit updates this row first; no row touched, no commit.
CREATE TABLE owner (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    broker TEXT NOT NULL,
    incarnation TEXT NOT NULL,          -- one run of the broker's process
    epoch INTEGER NOT NULL,             -- rises with every take-over
    until_ms INTEGER NOT NULL,          -- end of the lease; 0: no lease, the lock file beside the store decides
    last_commit INTEGER NOT NULL
);

CREATE TABLE partition (
    "row" INTEGER PRIMARY KEY,
    next_sequence INTEGER NOT NULL,
    next_number INTEGER NOT NULL
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
    session TEXT,
    due_ms INTEGER
);

-- Peek goes by sequence number. In an active sub-queue (kind bits 0) that is the position, so the primary key serves
-- and the hot path pays for no index; elsewhere an entry keeps its old number at a new position.
CREATE INDEX entry_by_sequence ON entry (key >> 40, sequence) WHERE ((key >> 40) & 3) <> 0;

CREATE TABLE lock_batch (
    lock_key INTEGER NOT NULL,
    first_pos INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    bitmap BLOB NOT NULL,               -- bit i, little-endian: first_pos + i is locked
    PRIMARY KEY (lock_key, first_pos)
) WITHOUT ROWID;

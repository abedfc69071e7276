-- Format version 2 to 3, in a transaction of the caller's. What the tables mean: schema.sql.

CREATE INDEX entry_by_shared_body ON entry (body) WHERE ((body >> 38) & 1) <> 0;

ALTER TABLE owner ADD COLUMN highest_ms INTEGER NOT NULL DEFAULT 0;

CREATE TABLE inbound_mark (
    partition_row INTEGER NOT NULL,
    source INTEGER NOT NULL,            -- key of the sub-queue that it comes from
    pos INTEGER NOT NULL,
    PRIMARY KEY (partition_row, source)
) WITHOUT ROWID;

CREATE TABLE executed (
    number INTEGER PRIMARY KEY,
    asker TEXT NOT NULL,                -- one run of a broker
    at_ms INTEGER NOT NULL,             -- by the clock of the owner that committed
    requests BLOB NOT NULL              -- (request, first sequence), 64 bits each, little-endian
);

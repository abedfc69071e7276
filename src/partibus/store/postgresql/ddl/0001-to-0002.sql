-- Format version 1 to 2, in a transaction of the caller's. What the tables mean: schema.sql.

CREATE INDEX entry_by_shared_body ON entry (body) WHERE ((body >> 38) & 1) <> 0;

ALTER TABLE owner ADD COLUMN highest_ms bigint NOT NULL DEFAULT 0;

CREATE TABLE inbound_mark (
    partition_row bigint NOT NULL,
    source bigint NOT NULL,            -- key of the sub-queue that it comes from
    pos bigint NOT NULL,
    PRIMARY KEY (partition_row, source)
) WITH (fillfactor = 25);

CREATE TABLE executed (
    asker bytea NOT NULL,              -- one run of a broker, UTF-8
    at_ms bigint NOT NULL,             -- by the clock of the owner that committed
    requests bytea NOT NULL            -- (request, first sequence), 64 bits each, little-endian
);

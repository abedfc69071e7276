-- Format version 3 to 4, in a transaction of the caller's. What the tables mean: schema.sql.
-- The schema may be a backup that was restored under an older partibus: it has no home, so a generation begins.

ALTER TABLE meta ADD COLUMN home text NOT NULL DEFAULT '';

CREATE TABLE generation (
    first bigint PRIMARY KEY,
    id bigint NOT NULL,
    from_ms bigint NOT NULL
);

INSERT INTO generation (first, id, from_ms) SELECT 1, 0, created_ms FROM meta;

CREATE TABLE left_off (
    partition_row bigint NOT NULL,
    first bigint NOT NULL,
    next_sequence bigint NOT NULL,
    next_number bigint NOT NULL,
    PRIMARY KEY (partition_row, first)
);

-- Format version 4 to 5, in a transaction of the caller's. What the tables mean: schema.sql.
-- The file may be a backup of an older partibus, which did not say so: it counts as a copy.

ALTER TABLE meta ADD COLUMN is_copy INTEGER NOT NULL DEFAULT 0;

UPDATE meta SET is_copy = 1;

CREATE TABLE generation (
    first INTEGER PRIMARY KEY,
    id INTEGER NOT NULL,
    from_ms INTEGER NOT NULL
);

INSERT INTO generation (first, id, from_ms) SELECT 1, 0, created_ms FROM meta;

CREATE TABLE left_off (
    partition_row INTEGER NOT NULL,
    first INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    PRIMARY KEY (partition_row, first)
) WITHOUT ROWID;

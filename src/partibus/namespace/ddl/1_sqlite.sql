-- The catalog, format 1. Later formats are files of their own, applied in order.

CREATE TABLE format (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    version INTEGER NOT NULL
);

-- What is given out once and never again, and where the next entity's first partition goes.
CREATE TABLE numbers (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    next_entity_id INTEGER NOT NULL,
    next_partition_row INTEGER NOT NULL,
    next_store_no INTEGER NOT NULL
);

CREATE TABLE entity (
    entity_id INTEGER PRIMARY KEY,
    folded_name TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- JSON object by the service's property names
    properties TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
);

-- Where each partition lives: written when the entity is made, never computed again.
CREATE TABLE placement (
    entity_id INTEGER NOT NULL REFERENCES entity (entity_id) ON DELETE CASCADE,
    partition_no INTEGER NOT NULL,
    store_no INTEGER NOT NULL,
    partition_row INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (entity_id, partition_no)
) WITHOUT ROWID;

-- Partitions of deleted entities whose rows may still be in their stores.
CREATE TABLE dropped_partition (
    partition_row INTEGER PRIMARY KEY,
    store_no INTEGER NOT NULL
);

INSERT INTO format VALUES (1, 1);
INSERT INTO numbers VALUES (1, 1, 1, 0);

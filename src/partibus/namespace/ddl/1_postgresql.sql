-- The catalog in PostgreSQL, format 1: the tables of 1_sqlite.sql, and what brokers on several machines tell each other.

CREATE TABLE format (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);

-- What is given out once and never again, and where the next entity's first partition goes.
CREATE TABLE numbers (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_entity_id BIGINT NOT NULL,
    next_partition_row BIGINT NOT NULL,
    next_store_no BIGINT NOT NULL
);

CREATE TABLE entity (
    entity_id BIGINT PRIMARY KEY,
    folded_name TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- JSON object by the service's property names
    properties TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);

-- Where each partition lives: written when the entity is made, never computed again.
CREATE TABLE placement (
    entity_id BIGINT NOT NULL REFERENCES entity (entity_id) ON DELETE CASCADE,
    partition_no BIGINT NOT NULL,
    store_no BIGINT NOT NULL,
    partition_row BIGINT NOT NULL UNIQUE,
    PRIMARY KEY (entity_id, partition_no)
);

-- Partitions of deleted entities whose rows may still be in their stores.
CREATE TABLE dropped_partition (
    partition_row BIGINT PRIMARY KEY,
    store_no BIGINT NOT NULL
);

-- Whose catalog it is: what all brokers of the namespace must have alike. Digests, not the secrets themselves.
CREATE TABLE cluster (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    cluster TEXT NOT NULL,
    secret_digest TEXT NOT NULL,
    keys_digest TEXT NOT NULL
);

-- Which database is the store of which number; names hold no passwords.
CREATE TABLE store (
    store_id TEXT PRIMARY KEY,
    name TEXT NOT NULL
);

-- The brokers, each with its last report. A broker that reads a row judges by its version (xmin) whether it is alive.
CREATE TABLE broker (
    broker TEXT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    -- HOST:PORT for the others; empty when it has ended in order
    address TEXT NOT NULL,
    -- by this server's clock; rows of a day ago are forgotten
    until TIMESTAMPTZ NOT NULL,
    -- version of the last change that it goes by
    followed BIGINT NOT NULL,
    -- JSON: its stores with their epochs, what health and status show
    facts TEXT NOT NULL
);

-- What was changed, in order, for brokers to follow.
CREATE TABLE change (
    version BIGINT PRIMARY KEY,
    body TEXT NOT NULL
);

-- The last change's version; its row lock lets changes come one at a time.
CREATE TABLE version (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version BIGINT NOT NULL
);

-- Entities that were used through any broker since somebody looked.
CREATE TABLE used_entity (
    entity_id BIGINT PRIMARY KEY
);

INSERT INTO format VALUES (1, 1);
INSERT INTO numbers VALUES (1, 1, 1, 0);
INSERT INTO version VALUES (1, 0);

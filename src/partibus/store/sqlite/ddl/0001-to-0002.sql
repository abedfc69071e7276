-- Format version 1 to 2, in a transaction of the caller's. What the tables mean: schema.sql.

ALTER TABLE partition ADD COLUMN session_state_bytes INTEGER NOT NULL DEFAULT 0;

-- Version 1 knew no entity that requires sessions; a session id is in the message's properties as well.
UPDATE entry SET session = NULL WHERE session IS NOT NULL;

CREATE INDEX entry_by_session ON entry (key >> 40, state, session) WHERE session IS NOT NULL;

CREATE INDEX entry_by_due ON entry (key >> 40, state, due_ms) WHERE due_ms IS NOT NULL;

CREATE TABLE session_state (
    id INTEGER PRIMARY KEY,
    partition_row INTEGER NOT NULL,
    session TEXT NOT NULL,
    updated_ms INTEGER NOT NULL,
    state BLOB NOT NULL
);

CREATE INDEX session_state_by_name ON session_state (partition_row, session, updated_ms);

CREATE TABLE duplicate_id (
    partition_row INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    id BLOB NOT NULL,
    accepted_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_row, bucket, id)
) WITHOUT ROWID;

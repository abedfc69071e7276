-- Format 4: the last commit of each store that an owner has reported, for brokers that open the store (ADR 0024).

CREATE TABLE acknowledged (
    store_id TEXT PRIMARY KEY,
    last_commit BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    incarnation TEXT NOT NULL
) WITH (fillfactor = 25);

-- Format 2: topics with subscriptions and their rules; access policies.

-- Of a subscription; null for the other kinds.
ALTER TABLE entity ADD COLUMN topic_id BIGINT;
CREATE INDEX entity_by_topic ON entity (topic_id) WHERE topic_id IS NOT NULL;

-- Counts partitioned entities without looking at every partition.
CREATE INDEX placement_of_partitioned ON placement (entity_id) WHERE partition_no = 1;

CREATE TABLE rule (
    entity_id BIGINT NOT NULL REFERENCES entity (entity_id) ON DELETE CASCADE,
    folded_name TEXT NOT NULL,
    -- what it counts as: sql or correlation
    counts_as TEXT NOT NULL,
    -- JSON, as partibus.filters.plain writes it
    content TEXT NOT NULL,
    PRIMARY KEY (entity_id, folded_name)
);

-- Entity 0 is the namespace; its policies in keys.json are not repeated here.
CREATE TABLE policy (
    entity_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    -- words, joined by commas
    rights TEXT NOT NULL,
    primary_key TEXT NOT NULL,
    secondary_key TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    modified_ms BIGINT NOT NULL,
    PRIMARY KEY (entity_id, name)
);

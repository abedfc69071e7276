-- Format 3: several namespaces.

-- Number 0 is the default namespace, which is there also when it has no row here.
CREATE TABLE namespace (
    namespace_id BIGINT PRIMARY KEY,
    folded_name TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    -- JSON object, as partibus.namespace.namespace_options writes it
    options TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);

ALTER TABLE numbers ADD COLUMN next_namespace_id BIGINT NOT NULL DEFAULT 1;

-- In other namespaces than number 0 folded_name begins with the number and a colon, which no name has. Policies of a
-- namespace itself have its number, below zero, for an entity's.
ALTER TABLE entity ADD COLUMN namespace_id BIGINT NOT NULL DEFAULT 0;
CREATE INDEX entity_by_namespace ON entity (namespace_id);

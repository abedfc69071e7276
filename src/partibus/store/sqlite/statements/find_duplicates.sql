-- Which ids are in a bucket or a later one, when each was last accepted and what it is of, as one row: a JSON array of
-- id in hex, time, original in hex. Skips from bucket to bucket and looks each id up by its key.
WITH RECURSIVE found (bucket) AS (
    SELECT min(bucket) FROM duplicate_id WHERE partition_row = ?1 AND bucket >= ?2
    UNION ALL
    SELECT (SELECT min(bucket) FROM duplicate_id WHERE partition_row = ?1 AND bucket > found.bucket)
    FROM found WHERE found.bucket IS NOT NULL
)
SELECT json_group_array(json_array(hex(id), accepted_ms, hex(original)))
FROM (
    SELECT duplicate_id.id, max(duplicate_id.accepted_ms) AS accepted_ms, duplicate_id.original -- of that row
    FROM found CROSS JOIN duplicate_id
        ON duplicate_id.partition_row = ?1 AND duplicate_id.bucket = found.bucket AND duplicate_id.id IN (?)
    GROUP BY duplicate_id.id
)

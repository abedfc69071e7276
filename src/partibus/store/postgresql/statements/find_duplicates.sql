-- Which ids are in a bucket or a later one, and when each was last accepted and what it is of. Skips from bucket to bucket and looks each
-- id up by its key.
WITH RECURSIVE found (bucket) AS (
    SELECT min(bucket) FROM duplicate_id WHERE partition_row = %(partition_row)s AND bucket >= %(first_bucket)s
    UNION ALL
    SELECT (SELECT min(bucket) FROM duplicate_id WHERE partition_row = %(partition_row)s AND bucket > found.bucket)
    FROM found WHERE found.bucket IS NOT NULL
)
SELECT DISTINCT ON (duplicate_id.id) duplicate_id.id, duplicate_id.accepted_ms, duplicate_id.original
FROM found JOIN duplicate_id
    ON duplicate_id.partition_row = %(partition_row)s AND duplicate_id.bucket = found.bucket
    AND duplicate_id.id = ANY (%(ids)s)
ORDER BY duplicate_id.id, duplicate_id.accepted_ms DESC

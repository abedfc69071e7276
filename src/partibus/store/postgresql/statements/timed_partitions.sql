-- Partitions with entries that are due at some time. Skips from partition to partition in the index.
WITH RECURSIVE found (partition_row) AS (
    SELECT * FROM (
        SELECT (key >> 40) >> 2 FROM entry WHERE due_ms IS NOT NULL ORDER BY key >> 40 LIMIT 1
    ) AS lowest
    UNION ALL
    SELECT (
        SELECT (key >> 40) >> 2 FROM entry
        WHERE due_ms IS NOT NULL AND key >> 40 >= (found.partition_row + 1) << 2
        ORDER BY key >> 40 LIMIT 1
    )
    FROM found WHERE found.partition_row IS NOT NULL
)
SELECT partition_row FROM found WHERE partition_row IS NOT NULL

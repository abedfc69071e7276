-- Partitions with entries that are due at some time, as one row. Skips from partition to partition in the index.
WITH RECURSIVE found ("row") AS (
    SELECT min(key >> 40) >> 2 FROM entry INDEXED BY entry_by_due WHERE due_ms IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(key >> 40) >> 2 FROM entry INDEXED BY entry_by_due
        WHERE due_ms IS NOT NULL AND key >> 40 >= (found."row" + 1) << 2
    )
    FROM found WHERE found."row" IS NOT NULL
)
SELECT json_group_array("row") FROM found WHERE "row" IS NOT NULL

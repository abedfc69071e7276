-- Batches of which a sink has ids, as one row. Skips from batch to batch.
WITH RECURSIVE found (batch) AS (
    SELECT min(batch) FROM sink_id WHERE partition_row = ?1 AND sink = ?2
    UNION ALL
    SELECT (SELECT min(batch) FROM sink_id WHERE partition_row = ?1 AND sink = ?2 AND batch > found.batch)
    FROM found WHERE found.batch IS NOT NULL
)
SELECT json_group_array(batch) FROM found WHERE batch IS NOT NULL

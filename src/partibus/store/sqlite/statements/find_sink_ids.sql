-- Which ids a sink has, as one row: a JSON array of them in hex. See select_sink_batches.
WITH RECURSIVE found (batch) AS (
    SELECT min(batch) FROM sink_id WHERE partition_row = ?1 AND sink = ?2
    UNION ALL
    SELECT (SELECT min(batch) FROM sink_id WHERE partition_row = ?1 AND sink = ?2 AND batch > found.batch)
    FROM found WHERE found.batch IS NOT NULL
)
SELECT json_group_array(hex(sink_id.id))
FROM found CROSS JOIN sink_id
    ON sink_id.partition_row = ?1 AND sink_id.sink = ?2 AND sink_id.batch = found.batch AND sink_id.id IN (?)

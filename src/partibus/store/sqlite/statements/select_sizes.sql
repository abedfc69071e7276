-- Stored bytes of partitions; as one row, a JSON array of arrays.
SELECT json_group_array(json_array("row", session_state_bytes + (
    SELECT coalesce(sum(bytes), 0) FROM subqueue WHERE key BETWEEN "row" << 2 AND ("row" << 2) + 3
)))
FROM partition WHERE "row" IN (?)

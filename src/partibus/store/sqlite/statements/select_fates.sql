-- Lines of the log of fates in order, as one row: a JSON array of arrays.
SELECT json_group_array(json_array(key & 1099511627775, pos, sequence, fate, at_ms, delivery_count))
FROM (SELECT * FROM fate WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?)

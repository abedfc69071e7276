-- Messages as one row: their keys and lengths, and all bytes in one blob in the same order.
SELECT json_group_array(json_array(key, length(data))), CAST(group_concat(data, '') AS BLOB)
FROM (SELECT key, data FROM body WHERE key IN (?))

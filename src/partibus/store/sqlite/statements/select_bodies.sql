-- Messages as one row: their keys and lengths, and the bytes in one blob in the same order, without those of large ones; see
-- select_page.
SELECT json_group_array(json_array(key, length(data))), CAST(group_concat(CASE WHEN length(data) <= 16384 THEN data END, '') AS BLOB)
FROM (SELECT key, data FROM body WHERE key IN (?))

-- The first entries of a range and the bodies that they name; as one row, a JSON array of arrays.
SELECT json_group_array(json_array(key, body))
FROM (SELECT key, body FROM entry WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?)

-- Partitions that have cursors, as one row: a JSON array.
SELECT json_group_array("row") FROM (SELECT DISTINCT subqueue >> 2 AS "row" FROM cursor ORDER BY 1 LIMIT ?)

-- Message ids in order of bucket and id from behind one of them, as one row: a JSON array of the narrow columns, and all
-- ids in one blob in the same order.
SELECT json_group_array(json_array(bucket, length(id), accepted_ms)), CAST(group_concat(id, '') AS BLOB)
FROM (
    SELECT bucket, id, accepted_ms FROM duplicate_id
    WHERE partition_row = ? AND (bucket, id) > (?, ?)
    ORDER BY bucket, id LIMIT ?
)

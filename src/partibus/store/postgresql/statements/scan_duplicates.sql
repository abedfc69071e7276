SELECT bucket, id, accepted_ms FROM duplicate_id
WHERE partition_row = %(partition_row)s AND (bucket, id) > (%(bucket)s, %(id)s)
ORDER BY bucket, id LIMIT %(most)s

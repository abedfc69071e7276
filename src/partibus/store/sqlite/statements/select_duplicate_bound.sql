-- The id that so many of a partition's, those of buckets below one, stand before; no row when there are no more.
SELECT bucket, id FROM duplicate_id WHERE partition_row = ? AND bucket < ? ORDER BY bucket, id LIMIT 1 OFFSET ?

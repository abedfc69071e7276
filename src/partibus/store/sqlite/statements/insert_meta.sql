INSERT INTO meta (id, format_version, store_id, created_ms) VALUES (1, ?, ?, ?)

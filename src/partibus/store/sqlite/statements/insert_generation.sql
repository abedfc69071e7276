INSERT INTO generation (first, id, from_ms) VALUES (?, ?, ?)

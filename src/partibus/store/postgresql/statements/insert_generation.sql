INSERT INTO generation (first, id, from_ms) VALUES (%(first)s, %(id)s, %(from_ms)s)

-- Format version 4 to 5. What the tables mean: schema.sql.

ALTER TABLE duplicate_id ADD COLUMN original bytea;

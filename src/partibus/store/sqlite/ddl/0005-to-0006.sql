-- Format version 5 to 6, in a transaction of the caller's. What the tables mean: schema.sql.

ALTER TABLE duplicate_id ADD COLUMN original BLOB;

-- How many entries in a state are due at some time; from the index alone.
SELECT count(*) FROM entry INDEXED BY entry_by_due
WHERE key >> 40 = ?1 AND state = ?2 AND due_ms IS NOT NULL

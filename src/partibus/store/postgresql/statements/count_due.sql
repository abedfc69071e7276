-- How many entries in a state are due at some time; from the index alone.
SELECT count(*) FROM entry WHERE key >> 40 = %(subqueue)s AND state = %(state)s AND due_ms IS NOT NULL

-- What a sub-queue holds, in all states.
SELECT messages, bytes FROM subqueue WHERE key = ?

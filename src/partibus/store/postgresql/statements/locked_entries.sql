-- Entries that a lock batch of a partition covers, without their messages but with their lengths; one that two batches
-- cover comes once.
SELECT DISTINCT ON (entry.key) entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, octet_length(body.data)
FROM lock_batch
CROSS JOIN LATERAL (
    SELECT * FROM entry
    WHERE entry.state < 16 AND entry.key BETWEEN ((lock_key >> 40) << 40) + first_pos
        AND ((lock_key >> 40) << 40) + least(first_pos + 8 * octet_length(bitmap) - 1, 1099511627775)
) AS entry
JOIN body ON body.key = entry.body
WHERE lock_key BETWEEN %(first)s AND %(last)s
    AND get_bit(bitmap, entry.key - (((lock_key >> 40) << 40) + first_pos)) = 1
ORDER BY entry.key

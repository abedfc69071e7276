-- As select_range, with the messages in one blob beside it: so many entries as would take up ?5 bytes if all were as large
-- as those of the sub-queue are on average, at most ?4. Their number comes first. A message that is much larger is left
-- out of the blob, which would have no bound otherwise; the lengths tell.
WITH guess (wanted) AS (
    SELECT min(?4, coalesce(CAST(max(64, ?5 * sum(messages) / max(1, sum(bytes))) AS INTEGER), 64))
    FROM (
        SELECT messages, bytes FROM subqueue WHERE key = ?1 >> 40
        UNION ALL
        SELECT messages, bytes FROM retained WHERE key = ?1 >> 40
    )
)
SELECT (SELECT wanted FROM guess),
    group_concat(printf('%016x%016x%016x%016x%016x', key & 1099511627775, state << 56 | sequence, enqueued_ms,
                        coalesce(due_ms, -1), delivery_count << 32 | size), ''),
    CAST(group_concat(data, '') FILTER (WHERE size * (SELECT wanted FROM guess) <= 8 * ?5) AS BLOB)
FROM (
    SELECT entry.*, body.data, length(body.data) AS size
    FROM entry CROSS JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ?1 AND ?2 AND entry.state <> 2 AND entry.state < ?3
    ORDER BY entry.key LIMIT (SELECT wanted FROM guess)
)

-- As select_range, with the messages in one blob beside it: so many entries as would take up ?5 bytes if all were as large
-- as those of the sub-queue are on average, at most ?4. Their number comes first. A message that is much larger is left
-- out of the blob, which would have no bound otherwise; the lengths tell.
--
-- Hex of all narrow columns was half of what a frame took. So of an entry that is like the first one in what select_usual
-- says, ?6 to ?9, and whose number is its position, there are four characters: the low bits of its position, two pieces
-- of its time, and its size. Of another one the fourth is the last character that there is, and all its columns are
-- among the others, in hex.
WITH guess (wanted) AS (
    SELECT min(?4, coalesce(CAST(max(64, ?5 * sum(messages) / max(1, sum(bytes))) AS INTEGER), 64))
    FROM (
        SELECT messages, bytes FROM subqueue WHERE key = ?1 >> 40
        UNION ALL
        SELECT messages, bytes FROM retained WHERE key = ?1 >> 40
    )
)
SELECT (SELECT wanted FROM guess),
    CAST(group_concat(char(
        key & 1048575, 65536 + (enqueued_ms & 65535), 65536 + (enqueued_ms >> 16 & 65535),
        iif(state = ?6 AND delivery_count = ?7 AND sequence = (key & 1099511627775) AND enqueued_ms >> 32 = ?8
            AND due_ms - enqueued_ms IS ?9 AND size < 1114111, size, 1114111)
    ), '') AS BLOB),
    group_concat(
        printf('%016x%016x%016x%016x%016x', key & 1099511627775, state << 56 | sequence, enqueued_ms,
               coalesce(due_ms, -1), delivery_count << 32 | size), ''
    ) FILTER (WHERE NOT (state = ?6 AND delivery_count = ?7 AND sequence = (key & 1099511627775) AND enqueued_ms >> 32 = ?8
                         AND due_ms - enqueued_ms IS ?9 AND size < 1114111)),
    CAST(group_concat(data, '') FILTER (WHERE size * (SELECT wanted FROM guess) <= 8 * ?5) AS BLOB)
FROM (
    SELECT entry.*, body.data, length(body.data) AS size
    FROM entry CROSS JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ?1 AND ?2 AND entry.state <> 2 AND entry.state < ?3
    ORDER BY entry.key LIMIT (SELECT wanted FROM guess)
)

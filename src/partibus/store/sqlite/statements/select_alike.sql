-- The first readable entry of a stretch, and how many from there on are as it is in all but time and size, with a number that
-- is their position: of so many positions as would take up ?4 bytes if their messages were as large as those of the
-- sub-queue are on average, some less lest they be a few bytes too many, at most ?5. Columns: its key, its state, its delivery
-- count, the bits of its time above 32, from then to the time it is due; so many positions; so many entries, 0 where the
-- first one's number is another one: then those behind it are not worth counting.
WITH first AS MATERIALIZED (
    SELECT key, state, delivery_count, enqueued_ms >> 32 AS high, due_ms - enqueued_ms AS span, sequence AS number
    FROM entry WHERE key BETWEEN ?1 AND ?2 AND state <> 2 AND state < ?3 ORDER BY key LIMIT 1
),
guess (wanted) AS MATERIALIZED (
    SELECT min(?5, coalesce(CAST(max(64, ?4 * 31 / 32 * sum(messages) / max(1, sum(bytes))) AS INTEGER), 64))
    FROM (
        SELECT messages, bytes FROM subqueue WHERE key = ?1 >> 40
        UNION ALL
        SELECT messages, bytes FROM retained WHERE key = ?1 >> 40
    )
)
SELECT first.key, first.state, first.delivery_count, high, span, min(wanted, ?2 - first.key + 1),
    iif(number = (first.key & 1099511627775), (
        SELECT count(*) FROM entry
        WHERE entry.key BETWEEN first.key AND min(?2, first.key + wanted - 1) AND entry.state = first.state
            AND entry.delivery_count = first.delivery_count AND sequence = (entry.key & 1099511627775)
            AND enqueued_ms >> 32 = high AND due_ms - enqueued_ms IS span
    ), 0)
FROM first CROSS JOIN guess

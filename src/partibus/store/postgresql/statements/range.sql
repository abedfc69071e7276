-- Readable entries of a range of keys, packed: whether these are all, 40 bytes of each (see partibus.store.frames), their
-- messages. State 2 is scheduled; from some state on they have left. Looks at a thousand entries, or at as many as would
-- fit if all messages were as large as those of the sub-queue are on average.
WITH guess AS (
    SELECT least(%(max_entries)s, greatest(1000, %(max_bytes)s * sum(messages) / greatest(1, sum(bytes))))::bigint
        AS wanted
    FROM (
        SELECT messages, bytes FROM subqueue WHERE key = %(first)s >> 40
        UNION ALL
        SELECT messages, bytes FROM retained WHERE key = %(first)s >> 40
    ) AS counts
)
SELECT count(*) < (SELECT wanted FROM guess) AND count(*) = count(*) FILTER (WHERE fits),
    string_agg(int8send(pos) || int8send(state::bigint << 56 | sequence) || int8send(enqueued_ms)
        || int8send(coalesce(due_ms, -1)) || int8send(delivery_count << 32 | size), ''::bytea ORDER BY pos)
        FILTER (WHERE fits),
    string_agg(data, ''::bytea ORDER BY pos) FILTER (WHERE fits)
FROM (
    SELECT page.*, sum(size) OVER in_order <= %(max_bytes)s OR row_number() OVER in_order = 1 AS fits
    FROM (
        SELECT entry.key & 1099511627775 AS pos, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
            entry.due_ms, body.data, octet_length(body.data) AS size
        FROM entry JOIN body ON body.key = entry.body
        WHERE entry.key BETWEEN %(first)s AND %(last)s AND entry.state <> 2 AND entry.state < %(states)s
        ORDER BY entry.key LIMIT (SELECT wanted FROM guess)
    ) AS page
    WINDOW in_order AS (ROWS UNBOUNDED PRECEDING)
) AS sized

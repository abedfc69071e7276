-- Readable entries of a range of keys, packed: how many there are within the bounds, how many within that on entries
-- alone, 40 bytes of each (see partibus.store.frames), their messages. State 2 is scheduled; from some state on they have
-- left.
SELECT count(*) FILTER (WHERE fits), count(*),
    string_agg(int8send(pos) || int8send(state::bigint << 56 | sequence) || int8send(enqueued_ms)
        || int8send(coalesce(due_ms, -1)) || int8send(delivery_count << 32 | octet_length(data)), ''::bytea ORDER BY pos)
        FILTER (WHERE fits),
    string_agg(data, ''::bytea ORDER BY pos) FILTER (WHERE fits)
FROM (
    SELECT page.*,
        sum(octet_length(data)) OVER in_order <= %(max_bytes)s OR row_number() OVER in_order = 1 AS fits
    FROM (
        SELECT entry.key & 1099511627775 AS pos, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
            entry.due_ms, body.data
        FROM entry JOIN body ON body.key = entry.body
        WHERE entry.key BETWEEN %(first)s AND %(last)s AND entry.state <> 2 AND entry.state < %(states)s
        ORDER BY entry.key LIMIT %(max_entries)s
    ) AS page
    WINDOW in_order AS (ROWS UNBOUNDED PRECEDING)
) AS sized

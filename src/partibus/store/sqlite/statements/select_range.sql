-- Readable entries in order of position, as one row: 40 bytes of each in hex (see partibus.store.frames), all one after
-- the other. State 2 is scheduled; from some state on they have left.
SELECT group_concat(printf('%016x%016x%016x%016x%016x', key & 1099511627775, state << 56 | sequence, enqueued_ms,
                           coalesce(due_ms, -1), delivery_count << 32 | size), '')
FROM (
    SELECT entry.*, length(body.data) AS size
    FROM entry CROSS JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ?1 AND ?2 AND entry.state <> 2 AND entry.state < ?3
    ORDER BY entry.key LIMIT ?4
)

-- Entries in any state by their sequence numbers, where these are no positions.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE ((entry.key >> 40) & 3) <> 0 AND entry.state < 16 AND entry.key >> 40 = %(subqueue)s AND entry.sequence = ANY (%(sequences)s)

-- Entries in any state by their keys; in an active sub-queue a sequence number is a key.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE entry.key = ANY (%(keys)s) AND entry.state < 16

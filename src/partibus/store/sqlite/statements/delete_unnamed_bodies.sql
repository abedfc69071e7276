-- Shared bodies that no entry names.
DELETE FROM body WHERE key IN (?) AND NOT EXISTS (
    SELECT 1 FROM entry INDEXED BY entry_by_shared_body
    WHERE entry.body = body.key AND ((entry.body >> 38) & 1) <> 0
)

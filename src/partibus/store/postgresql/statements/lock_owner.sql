-- The owner row, locked until the end of the transaction.
SELECT broker, incarnation, epoch, last_commit, taken_at,
    until_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS left_ms
FROM owner FOR UPDATE

-- The owner row, and whether its lease is valid by this database's clock.
SELECT broker, incarnation, epoch, last_commit, taken_at,
    until_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS left_ms
FROM owner

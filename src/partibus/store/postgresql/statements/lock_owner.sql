-- The owner row, locked until the end of the transaction.
SELECT broker, incarnation, epoch, last_commit, taken_at,
    xmin::text || ' ' || pg_postmaster_start_time()::text AS version, until_ms = 0 AS is_released
FROM owner FOR UPDATE

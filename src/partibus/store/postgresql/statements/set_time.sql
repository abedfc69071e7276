-- The clock that wrote the latest time was wrong.
WITH locks AS (UPDATE lock_batch SET until_ms = %(end_ms)s WHERE until_ms > %(end_ms)s),
    session_locks AS (UPDATE session_lock SET until_ms = %(end_ms)s WHERE until_ms > %(end_ms)s),
    leases AS (UPDATE cursor SET until_ms = %(end_ms)s WHERE until_ms > %(end_ms)s)
UPDATE owner SET highest_ms = %(now_ms)s WHERE epoch = %(epoch)s AND incarnation = %(incarnation)s RETURNING epoch

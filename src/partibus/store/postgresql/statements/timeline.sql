-- The timeline: a promoted standby, or a server that was recovered to a point in time, begins another.
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)

-- What the server promises when it says that a commit is done, and the copies that it waits for.
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
    (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming')

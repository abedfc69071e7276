UPDATE owner SET
    broker = %(broker)s, incarnation = %(incarnation)s, epoch = epoch + 1, taken_at = last_commit,
    until_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(lease_ms)s
WHERE epoch = %(epoch)s
RETURNING epoch, last_commit, highest_ms

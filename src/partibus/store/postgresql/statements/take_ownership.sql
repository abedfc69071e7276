UPDATE owner SET
    broker = %(broker)s, incarnation = %(incarnation)s, epoch = %(next_epoch)s,
    last_commit = %(last_commit)s, taken_at = %(last_commit)s,
    until_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(lease_ms)s
WHERE epoch = %(epoch)s
RETURNING epoch, highest_ms

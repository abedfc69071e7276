UPDATE owner SET until_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(lease_ms)s
WHERE epoch = %(epoch)s AND incarnation = %(incarnation)s
RETURNING last_commit

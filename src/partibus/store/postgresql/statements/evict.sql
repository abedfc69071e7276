-- End the connections of one run of a broker to this store, and wait until they are gone.
SELECT pg_terminate_backend(pid, %(limit_ms)s) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %(application)s AND pid <> pg_backend_pid()

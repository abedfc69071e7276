-- Where the tables were made, and where they are now.
SELECT home, (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '/' || 'meta'::regclass::oid::text
FROM meta

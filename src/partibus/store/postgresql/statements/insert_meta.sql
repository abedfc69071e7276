INSERT INTO meta (id, format_version, store_id, cluster, created_ms)
VALUES (1, %(version)s, %(store_id)s, %(cluster)s, %(created_ms)s)

SELECT count(*) FILTER (WHERE to_regclass(quote_ident(nspname) || '.meta') IS NOT NULL) AS is_store,
    count(*) AS exists,
    count(*) FILTER (WHERE EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_namespace.oid)) AS is_used
FROM pg_namespace WHERE nspname = %(schema)s

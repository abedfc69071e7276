SELECT format_version, store_id, cluster FROM meta

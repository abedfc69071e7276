SELECT format_version, store_id FROM meta

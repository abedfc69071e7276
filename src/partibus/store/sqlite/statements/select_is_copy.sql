SELECT is_copy FROM meta

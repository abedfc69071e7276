SELECT session, lock_id, until_ms, holder FROM session_lock WHERE partition_row = %(partition_row)s ORDER BY session

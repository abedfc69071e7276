-- The sessions of a partition that somebody holds, as one row: a JSON array of arrays.
SELECT json_group_array(json_array(session, lock_id, until_ms, holder))
FROM (SELECT * FROM session_lock WHERE partition_row = ? ORDER BY session)

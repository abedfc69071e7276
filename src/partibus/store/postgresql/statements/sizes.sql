SELECT partition_row, session_state_bytes + coalesce((
    SELECT sum(bytes) FROM subqueue WHERE key BETWEEN partition_row << 2 AND (partition_row << 2) + 3
), 0)::bigint
FROM partition WHERE partition_row = ANY (%(rows)s)

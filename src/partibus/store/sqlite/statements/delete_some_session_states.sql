-- Some states of a partition, bounded by their number and their bytes; one at least.
DELETE FROM session_state WHERE id IN (
    SELECT id FROM (
        SELECT id, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (SELECT id, length(state) AS size FROM session_state WHERE partition_row = ? LIMIT ?)
        WINDOW in_order AS (ORDER BY id ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ? OR nth = 1
)

-- Of the rows of a page, in their order, as many as a sum of lengths allows; the first always.
SELECT pos, body, sequence, enqueued_ms, state, delivery_count, session, due_ms, data
FROM (
    SELECT page.*,
        sum(octet_length(data)) OVER (ROWS UNBOUNDED PRECEDING) AS total,
        row_number() OVER (ROWS UNBOUNDED PRECEDING) AS nth
    FROM (
        {page}
    ) AS page
) AS sized
WHERE total <= %(max_bytes)s OR nth = 1

-- Sub-queues that hold messages; as one row, a JSON array of arrays.
SELECT json_group_array(json_array(key, messages, bytes))
FROM (SELECT key, messages, bytes FROM subqueue WHERE messages > 0 ORDER BY key LIMIT ?)

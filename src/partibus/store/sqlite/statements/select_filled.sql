-- Sub-queues that hold messages; as one row, of each column a JSON array.
SELECT json_group_array(key), json_group_array(messages), json_group_array(bytes)
FROM (SELECT key, messages, bytes FROM subqueue WHERE messages > 0 ORDER BY key LIMIT ?)

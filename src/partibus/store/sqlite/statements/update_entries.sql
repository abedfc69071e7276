UPDATE entry SET body = new.column2, state = new.column3, delivery_count = new.column4, due_ms = new.column5
FROM (SELECT * FROM (VALUES (?, ?, ?, ?, ?)) LIMIT ?) AS new
WHERE entry.key = new.column1

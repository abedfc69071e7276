UPDATE entry SET state = new.column2, delivery_count = new.column3, due_ms = new.column4
FROM (SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?) AS new
WHERE entry.key = new.column1

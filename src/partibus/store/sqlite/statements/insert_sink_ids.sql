-- Ids of one batch that no batch has. OR IGNORE: a form is filled up with its last id.
INSERT OR IGNORE INTO sink_id (partition_row, sink, batch, id)
SELECT ?, ?, ?, column1 FROM (VALUES (?)) LIMIT ?

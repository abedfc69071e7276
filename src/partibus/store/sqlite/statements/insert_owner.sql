INSERT INTO owner (id, broker, incarnation, epoch, until_ms, last_commit) VALUES (1, '', '', 0, 0, 0)

DELETE FROM entry WHERE key IN (?)

DELETE FROM body WHERE key IN (?)

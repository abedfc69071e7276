INSERT OR IGNORE INTO dropped_partition ("row") VALUES (?)

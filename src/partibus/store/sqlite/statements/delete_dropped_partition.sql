DELETE FROM dropped_partition WHERE "row" = ?

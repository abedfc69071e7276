DELETE FROM partition WHERE "row" = ?

SELECT next_sequence, next_number FROM partition WHERE "row" = ?

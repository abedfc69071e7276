UPDATE meta SET is_copy = ?

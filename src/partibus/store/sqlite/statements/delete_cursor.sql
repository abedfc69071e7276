DELETE FROM cursor WHERE subqueue = ? AND name = ?

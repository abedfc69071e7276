DELETE FROM cursor WHERE subqueue BETWEEN ? AND ?

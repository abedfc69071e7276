SELECT DISTINCT subqueue >> 2 FROM cursor ORDER BY 1 LIMIT %(most)s

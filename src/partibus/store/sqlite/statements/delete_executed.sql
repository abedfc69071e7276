DELETE FROM executed WHERE at_ms < ?

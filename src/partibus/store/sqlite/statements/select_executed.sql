SELECT requests FROM executed WHERE asker = ?

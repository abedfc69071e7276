SELECT requests FROM executed WHERE asker = %(asker)s

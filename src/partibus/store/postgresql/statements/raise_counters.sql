UPDATE partition SET next_sequence = %(first)s, next_number = %(first)s

UPDATE partition SET next_sequence = ?1, next_number = ?1

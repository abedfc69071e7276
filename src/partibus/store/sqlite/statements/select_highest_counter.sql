SELECT max(max(next_sequence, next_number)) FROM partition

SELECT coalesce(max(greatest(next_sequence, next_number)), 1) FROM partition

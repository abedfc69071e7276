INSERT INTO left_off (partition_row, first, next_sequence, next_number)
SELECT partition_row, %(first)s, next_sequence, next_number FROM partition

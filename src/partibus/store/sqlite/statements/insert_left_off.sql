INSERT INTO left_off (partition_row, first, next_sequence, next_number)
SELECT "row", ?, next_sequence, next_number FROM partition

SELECT partition_row FROM dropped_partition ORDER BY partition_row

SELECT "row" FROM dropped_partition

SELECT sweep_partition(%(epoch)s, %(incarnation)s, %(partition_row)s, %(most)s, %(most_states)s)

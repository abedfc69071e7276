"""The boundary of a partition: commands, replies and loads, and the ports that its runtime is handed."""

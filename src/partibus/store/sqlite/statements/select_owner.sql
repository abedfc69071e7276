SELECT broker, incarnation, epoch FROM owner

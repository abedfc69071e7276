"""The state machine of one partition: pure, with time, ids and IO as arguments."""

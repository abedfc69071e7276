"""The composition root: settings, wiring, order of start and stop."""

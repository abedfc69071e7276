"""The `partibus` command. Commands are imported when they are called, so that `serve` starts fast."""

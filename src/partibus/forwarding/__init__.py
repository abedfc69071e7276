"""Auto-forwarding: move messages or dead letters of a queue or subscription to another entity, each once (D15)."""

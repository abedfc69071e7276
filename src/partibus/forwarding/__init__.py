"""Auto-forward: messages of a queue or subscription, or its dead letters, go on to another entity, each once (D15)."""

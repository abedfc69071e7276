UPDATE owner SET highest_ms = ?

UPDATE owner SET last_commit = ?, highest_ms = max(highest_ms, ?) WHERE epoch = ? AND incarnation = ?

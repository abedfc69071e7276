UPDATE owner SET last_commit = ? WHERE epoch = ? AND incarnation = ?

UPDATE owner SET broker = ?, incarnation = ?, epoch = epoch + 1 RETURNING epoch, last_commit, highest_ms

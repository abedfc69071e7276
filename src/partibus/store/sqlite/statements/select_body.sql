-- One large message.
SELECT data FROM body WHERE key = ?

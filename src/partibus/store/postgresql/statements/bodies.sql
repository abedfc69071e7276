SELECT key, data FROM body WHERE key = ANY (%(keys)s)

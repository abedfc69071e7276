-- Where a scan that found nothing active goes on: the key after so many entries; no row at the end of the sub-queue.
SELECT key FROM entry WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1 OFFSET ?

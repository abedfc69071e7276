SELECT count(*) FROM entry

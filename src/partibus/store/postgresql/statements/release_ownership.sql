UPDATE owner SET until_ms = 0 WHERE epoch = %(epoch)s AND incarnation = %(incarnation)s

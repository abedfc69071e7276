UPDATE meta SET home = %(home)s

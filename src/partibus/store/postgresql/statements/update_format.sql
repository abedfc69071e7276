UPDATE meta SET format_version = %(version)s

UPDATE meta SET format_version = ?

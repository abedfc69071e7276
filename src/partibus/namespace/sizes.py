"""Sizes as people read them, in the command line and the portal alike.

A KB is 1,024 bytes and so on, as where the service says that an entity has 1 to 5 GB (row P21).
"""

SIZES = ("bytes", "KB", "MB", "GB", "TB")


def size_text(size_bytes: float) -> str:
    """Return a size such as ``1.5 GB``: the largest unit of which there is one, and a decimal where that says more."""
    unit = 0
    while size_bytes >= 1024 and unit < len(SIZES) - 1:
        size_bytes /= 1024
        unit += 1
    digits = 0 if float(size_bytes).is_integer() or size_bytes >= 100 else 1
    return f"{size_bytes:.{digits}f} {SIZES[unit]}"

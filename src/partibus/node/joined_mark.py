"""What tells the data directory of one of the brokers of several machines (`partibus.node.joining`).

Who serves alone asks for no more than this, and need not wait for what brokers tell one another to be imported.
"""

import json
from pathlib import Path

from partibus.errors import UnusableFile

MARK = "cluster.json"
"""In the data directory of such a broker: whose it is."""


def refuse_if_joined(data: Path) -> None:
    """To be served alone. Raises `UnusableFile` for the data directory of a broker of several machines: it holds no
    messages itself, so its clients would find an empty namespace."""
    path = data / MARK
    if path.exists():
        catalog = json.loads(path.read_text()).get("catalog", "")
        raise UnusableFile(
            str(path),
            f"says that this is the directory of a broker of the catalog {catalog}",
            f"Serve with --catalog {catalog} and its stores, or from another directory.",
        )

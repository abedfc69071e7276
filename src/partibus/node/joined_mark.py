"""The mark in the data directory of a broker that has joined others on several machines (`partibus.node.joining`).

A broker that serves alone needs only this module, and does not import the protocol between brokers.
"""

import json
from pathlib import Path

from partibus.errors import UnusableFile

MARK = "cluster.json"
"""The file in the data directory of such a broker that names its namespace."""


def refuse_if_joined(data: Path) -> None:
    """Refuse to serve a data directory alone if its broker has joined others.

    Raises `UnusableFile`: the directory holds no messages itself, so its clients would find an empty namespace.
    """
    path = data / MARK
    if path.exists():
        catalog = json.loads(path.read_text()).get("catalog", "")
        raise UnusableFile(
            str(path),
            f"says that this is the directory of a broker of the catalog {catalog}",
            f"Serve with --catalog {catalog} and its stores, or from another directory.",
        )

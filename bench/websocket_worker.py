"""`partibus.bench.worker` in a websocket over TLS: `python -m bench.websocket_worker`, with the address in `URL`."""

from __future__ import annotations

import os
import sys

from partibus.bench.worker import main

URL = "PARTIBUS_BENCH_WEBSOCKET"

if __name__ == "__main__":
    sys.exit(main(transport="websocket", endpoint=os.environ[URL]))

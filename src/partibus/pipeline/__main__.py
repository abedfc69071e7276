"""The entry point for `spark-submit`: `spark-submit ... $(python -m partibus.pipeline --where) telemetry ...`.

It takes the same command line as `partibus pipeline`.
"""

import sys
from pathlib import Path

# When run as a file, its folder comes first on the path: the modules there must not hide others of their names.
if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

from partibus.cli.main import pipeline

if __name__ == "__main__":
    if sys.argv[1:] == ["--where"]:
        print(__file__)
    else:
        pipeline(prog_name="partibus pipeline")

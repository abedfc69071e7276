"""Prove that the tests of a row would miss its capability: run them against a product that lacks it.

    python -m tests.plugins.saboteurs [-n WORKERS] [ROW ...]

A *saboteur* is a small named patch of the product that takes the capability of one row away (`spec/saboteurs/*.toml`).
The command copies `src`, applies the patch to the copy, and runs every test that carries the row against it. Each of
them has to fail; a broker of the copy still has to start and to say that it is healthy. `spec/proofs.json` records the
outcome for the conformance page. Without a row the command runs the saboteurs whose proof is missing or out of date.

    [[saboteur]] row = "K6" breaks = "a session id and a partition key that differ are accepted"

    [[saboteur.edits]] file = "partibus/x.py" find = "if a != b:" replace = "if False:"

`find` must occur exactly once in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from tests.plugins import specification

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.plugins.rows import Outcome, Result

PROJECT = specification.PROJECT
SABOTEURS = PROJECT / "spec" / "saboteurs"
PROOFS = PROJECT / "spec" / "proofs.json"
BUILD = PROJECT / "build" / "saboteurs"

CONTROL = "tests/conformance/test_serve.py::test_health_says_200_and_each_store"
"""The test that every saboteur leaves intact: a product that does not start proves nothing."""
EVENTUALLY_S = 10
"""How long tests wait for a condition (`tests.kit.eventually`): they are expected to wait in vain."""
TEST_TIMEOUT_S = 60
ROW_TIMEOUT_S = 900


class Edit(TypedDict):
    """One replacement in one file."""

    file: str
    """Path below `src`."""
    find: str
    replace: str


@dataclass(frozen=True)
class Saboteur:
    """A patch that takes the capability of one row away."""

    row: str
    breaks: str
    """The behaviour of the patched product, as a sentence."""
    edits: tuple[Edit, ...]

    @property
    def digest(self) -> str:
        """A hash of the edits, by which a proof names the saboteur that it was made with.

        The files are not in it: a module that moves changes nothing.
        """
        edits = [(edit["find"], edit["replace"]) for edit in self.edits]
        return hashlib.sha256(json.dumps(edits).encode()).hexdigest()[:16]


class Proof(TypedDict):
    """The outcomes of the tests of a row against its saboteur."""

    saboteur: str
    """The digest of its edits."""
    failed: list[str]
    """Tests, without parameters, that failed as they must."""
    survived: list[str]
    """Tests that passed or were skipped, and so do not show the row."""


def parse(text: str, origin: str = "saboteurs") -> list[Saboteur]:
    """Read the text of a saboteurs file.

    Raises ValueError, naming `origin` and the row, for an unknown row or a saboteur without edits.
    """
    found = []
    for fields in tomllib.loads(text).get("saboteur", []):
        saboteur = Saboteur(fields["row"], fields["breaks"], tuple(fields["edits"]))
        if saboteur.row not in specification.load().ids:
            raise ValueError(f"{origin}: no row {saboteur.row} in spec/rows.toml")
        if not saboteur.edits:
            raise ValueError(f"{origin}: the saboteur of row {saboteur.row} has no edits")
        found.append(saboteur)
    return found


def load() -> dict[str, Saboteur]:
    """Read every saboteur of the project, by row; ValueError when a row has two."""
    saboteurs: dict[str, Saboteur] = {}
    for path in sorted(SABOTEURS.glob("*.toml")):
        for saboteur in parse(path.read_text(encoding="utf-8"), path.name):
            if saboteur.row in saboteurs:
                raise ValueError(f"{path.name}: row {saboteur.row} has two saboteurs; merge their edits")
            saboteurs[saboteur.row] = saboteur
    return saboteurs


def patched(text: str, edit: Edit) -> str:
    """Apply one edit to the text of its file; ValueError unless `find` occurs exactly once."""
    if (count := text.count(edit["find"])) != 1:
        raise ValueError(f"{edit['file']}: {edit['find']!r} occurs {count} times; a saboteur needs exactly one")
    return text.replace(edit["find"], edit["replace"])


def apply(edits: Iterable[Edit], tree: Path) -> None:
    """Patch the files below `tree`, a copy of `src`."""
    for edit in edits:
        path = tree / edit["file"]
        path.write_text(patched(path.read_text(encoding="utf-8"), edit), encoding="utf-8")


def proofs() -> dict[str, Proof]:
    """Read the recorded proofs, by row."""
    recorded: dict[str, Proof] = json.loads(PROOFS.read_text(encoding="utf-8")) if PROOFS.exists() else {}
    return recorded


def verdicts() -> dict[str, frozenset[str]]:
    """Find the tests (ids without parameters) that failed against today's saboteur of each row."""
    saboteurs = load()
    return {
        row: frozenset(proof["failed"])
        for row, proof in proofs().items()
        if row in saboteurs and saboteurs[row].digest == proof["saboteur"]
    }


def carriers(row: str) -> list[str]:
    """Find the test files that name a row."""
    return [path for path, text in _tests().items() if f'"{row}"' in text]


@cache
def _tests() -> dict[str, str]:
    """Path below the project -> text, of each file with tests."""
    return {
        str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8")
        for path in sorted((PROJECT / "tests").rglob("test_*.py"))
        if "plugins" not in path.parts
    }


def prove(saboteur: Saboteur, workers: int) -> Proof:
    """Run the tests of the row against the patched copy.

    Raises RuntimeError when the control test fails against the copy, or when pytest can't run or hangs.
    """
    tree = BUILD / saboteur.row
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(PROJECT / "src", tree, ignore=shutil.ignore_patterns("__pycache__"))
    apply(saboteur.edits, tree)
    if _pytest(tree, 0, CONTROL):
        raise RuntimeError(f"row {saboteur.row}: {CONTROL} fails too; a saboteur breaks one capability, not the start")
    report = BUILD / f"{saboteur.row}.json"
    report.unlink(missing_ok=True)
    _pytest(tree, workers, "--only-row", saboteur.row, "--rows-report", str(report), *carriers(saboteur.row))
    if not report.exists():
        raise RuntimeError(f"row {saboteur.row}: pytest wrote no report; see {BUILD / 'pytest.log'}")
    shutil.rmtree(tree)
    return judge(saboteur, json.loads(report.read_text(encoding="utf-8")))


def judge(saboteur: Saboteur, results: Mapping[str, Result]) -> Proof:
    """Sort the tests of a run: those of which a parameter failed, and those that survived."""
    outcomes: dict[str, set[Outcome]] = {}
    for nodeid, result in results.items():
        if saboteur.row in result["rows"]:
            outcomes.setdefault(nodeid.partition("[")[0], set()).add(result["outcome"])
    failed = sorted(test for test, seen in outcomes.items() if "failed" in seen)
    return {"saboteur": saboteur.digest, "failed": failed, "survived": sorted(outcomes.keys() - set(failed))}


def _pytest(tree: Path, workers: int, *arguments: str) -> int:
    """Run tests of this project against the product in `tree`; returns pytest's status."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PARTIBUS_EVENTUALLY_S": str(EVENTUALLY_S),
    }
    spread = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"] if workers else []
    limits = ["-p", "no:cacheprovider", "--tb=line", "--timeout", str(TEST_TIMEOUT_S)]
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "pytest.log").open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "pytest", "-q", *spread, *limits, *arguments]
        try:
            ran = subprocess.run(
                command, cwd=PROJECT, env=environment, stdout=log, stderr=log, check=False, timeout=ROW_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the tests hang: not over within {ROW_TIMEOUT_S} s; see {log.name}") from error
        return ran.returncode


def _stale() -> Iterator[str]:
    """Yield the rows whose saboteur has changed since its proof, or whose tests survived it."""
    known = proofs()
    for row, saboteur in load().items():
        proof = known.get(row)
        if proof is None or proof["saboteur"] != saboteur.digest or proof["survived"]:
            yield row


def main(arguments: list[str]) -> int:
    """Run saboteurs and record the proofs; status 1 when a test survived one."""
    parser = argparse.ArgumentParser(prog="saboteurs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: every row whose proof is out of date")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes that run tests (default 2)")
    options = parser.parse_args(arguments)
    saboteurs = load()
    if unknown := [row for row in options.rows if row not in saboteurs]:
        parser.error(f"no saboteur for {', '.join(unknown)} in spec/saboteurs; there are {', '.join(saboteurs)}")
    status = 0
    for row in options.rows or list(_stale()):
        try:
            proof = prove(saboteurs[row], options.workers)
        except (RuntimeError, ValueError) as error:
            print(f"{row}: {error}", flush=True)
            status = 1
            continue
        PROOFS.write_text(json.dumps(proofs() | {row: proof}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{row}: {len(proof['failed'])} tests failed as they must, {len(proof['survived'])} survived", flush=True)
        for test in proof["survived"]:
            print(f"    {test}", flush=True)
        status |= bool(proof["survived"] or not proof["failed"])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

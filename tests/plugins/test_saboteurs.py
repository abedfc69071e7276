"""Saboteurs apply to today's source, and a proof holds only for the saboteur that it was made with."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.plugins import saboteurs
from tests.plugins.saboteurs import Saboteur

if TYPE_CHECKING:
    from tests.plugins.rows import Result
    from tests.plugins.saboteurs import Edit

EDIT: Edit = {"file": "partibus/a.py", "find": "a != b", "replace": "False"}


def test_every_saboteur_applies_to_the_source_and_leaves_valid_code() -> None:
    wrong = []
    for saboteur in saboteurs.load().values():
        try:
            check(saboteur)
        except (OSError, SyntaxError, ValueError) as error:
            wrong.append(f"row {saboteur.row}: {error}")
    assert wrong == []


def check(saboteur: Saboteur) -> None:
    """Raise OSError, ValueError or SyntaxError when an edit does not apply, ValueError when no test carries the row."""
    texts: dict[str, str] = {}
    for edit in saboteur.edits:
        file = edit["file"]
        text = texts.get(file) or (saboteurs.PROJECT / "src" / file).read_text(encoding="utf-8")
        texts[file] = saboteurs.patched(text, edit)
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text, file)
    if not saboteurs.carriers(saboteur.row):
        raise ValueError("no test carries it")


def test_a_saboteur_that_does_not_apply_is_found() -> None:
    missing: Edit = {"file": "partibus/errors.py", "find": "\0", "replace": ""}
    broken: Edit = {"file": "partibus/errors.py", "find": "class PartibusError(", "replace": "("}
    for edit, error in ((missing, ValueError), (broken, SyntaxError)):
        with pytest.raises(error):
            check(Saboteur("K6", "x", (edit,)))


def test_an_edit_that_matches_nothing_or_twice_is_refused() -> None:
    for text in ("", "a != b and a != b"):
        with pytest.raises(ValueError, match=r"partibus/a\.py.*exactly one"):
            saboteurs.patched(text, EDIT)


def test_a_saboteur_of_an_unknown_row_or_without_edits_is_refused() -> None:
    with pytest.raises(ValueError, match="no row K99"):
        saboteurs.parse('[[saboteur]]\nrow = "K99"\nbreaks = "x"\nedits = []')
    with pytest.raises(ValueError, match="row K6 has no edits"):
        saboteurs.parse('[[saboteur]]\nrow = "K6"\nbreaks = "x"\nedits = []')


def test_a_test_survives_when_no_parameter_of_it_failed() -> None:
    results: dict[str, Result] = {
        "t.py::a[0]": {"rows": ["K6"], "outcome": "passed"},
        "t.py::a[1]": {"rows": ["K6"], "outcome": "failed"},
        "t.py::b": {"rows": ["K6"], "outcome": "passed"},
        "t.py::c": {"rows": ["K6"], "outcome": "skipped"},
        "t.py::d": {"rows": ["K1"], "outcome": "passed"},
    }
    proof = saboteurs.judge(Saboteur("K6", "x", (EDIT,)), results)
    assert (proof["failed"], proof["survived"]) == (["t.py::a"], ["t.py::b", "t.py::c"])


def test_a_proof_holds_only_for_the_edits_that_it_was_made_with() -> None:
    changed: Edit = {**EDIT, "replace": "True"}
    assert Saboteur("K6", "x", (EDIT,)).digest == Saboteur("K6", "y", (EDIT,)).digest
    assert Saboteur("K6", "x", (EDIT,)).digest != Saboteur("K6", "x", (changed,)).digest

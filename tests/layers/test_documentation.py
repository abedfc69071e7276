"""The pages of the documentation are all listed, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def test_index_lists_every_page_and_decision() -> None:
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert pages <= linked


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (DOCS / "adr").glob("*.md"))
    assert numbers == list(range(len(numbers)))


def test_every_link_between_pages_leads_to_a_page_and_a_heading() -> None:
    headings = {page: set(map(_anchor, _headings(page))) for page in PAGES}
    wrong = []
    for page in PAGES:
        for target, anchor in _links(page):
            there = (page.parent / target).resolve() if target else page
            if not there.exists():
                wrong.append(f"{page.name}: {target} does not exist")
            elif anchor and anchor not in headings.get(there, ()):
                wrong.append(f"{page.name}: {target}#{anchor} has no such heading")
    assert not wrong, "\n".join(wrong)


def test_the_site_has_every_page() -> None:
    site = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": (?:tutorials/)?([A-Za-z_-]+\.md)$", site, re.MULTILINE))
    assert named == {page.name for page in PAGES if page.parent != DOCS / "adr"}


def test_pages_name_targets_and_variables_of_the_makefile() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets, variables = (set(re.findall(of, makefile, re.MULTILINE)) for of in (r"^([a-z-]+):", r"^([A-Z_]+) \?="))
    named = [
        (page.name, target, set(re.findall("([A-Z_]+)=", settings)))
        for page in PAGES
        for target, settings in re.findall(
            r"^(?:\$ )?make ([a-z-]+)((?: [A-Z_]+=\S+)*)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert len(named) > 5
    assert [one for one in named if one[1] not in targets or not one[2] <= variables] == []


def _text(page: Path) -> str:
    """Read a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", _text(page), re.MULTILINE)


def _anchor(heading: str) -> str:
    """Make the name that a heading is linked by, as the site and code hosts do."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).strip())


def _links(page: Path) -> list[tuple[str, str]]:
    """Find the relative links of a page: (path, heading or nothing)."""
    found = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", re.sub(r"`[^`]*`", "", _text(page)))
    return [(str(target), str(anchor)) for target, anchor in found]

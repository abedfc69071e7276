"""mkdocs hook: README and the other pages of the project's root become pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the decisions to the navigation."""
    for name in ROOT_PAGES:
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    decisions = sorted(file.src_uri for file in files if file.src_uri.startswith("adr/"))
    assert config.nav is not None
    for section in config.nav:
        for pages in section.values():
            for entry in pages if isinstance(pages, list) else ():
                if entry.get("Decisions") == "adr/":
                    entry["Decisions"] = decisions
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between the root and `docs` into links between pages of one folder."""
    if page.file.src_uri in ROOT_PAGES:
        return re.sub(r"\]\(docs/", "](", markdown)
    up = "../" * (page.file.src_uri.count("/") + 1)
    names = "|".join(re.escape(name) for name in ROOT_PAGES)
    return re.sub(rf"\]\({re.escape(up)}({names})", rf"]({up[3:]}\1", markdown)

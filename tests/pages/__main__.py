"""`python -m tests.pages FOLDER [PAGE...]` draws the pages of all jobs and of the demo, and prints their faults.

A page is drawn in a light and a dark theme, on a broad and on a narrow screen, of which each is wrong in its own way.
"""

import sys
from pathlib import Path

from tests.pages.chromium import browser
from tests.pages.results import PAGES, Case, page_of

SCREENS = ((1_200, False), (1_200, True), (400, False), (400, True))


def main(folder: Path, names: list[str]) -> None:
    """Draw pages, by ``name`` or ``name-case``."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(name, case) for name in PAGES for case in Case if not names or {name, f"{name}-{case}"} & {*names}]
    with browser() as tab:
        for name, case in wanted:
            path = folder / f"{name}-{case}.html"
            path.write_text(page_of(name, case), encoding="utf-8")
            for width, dark in SCREENS:
                tab.show(path, width, dark=dark)
                to = folder / f"{name}-{case}-{width}-{'dark' if dark else 'light'}.png"
                tab.draw(to)
                for fault in tab.faults():
                    print(f"{to.stem}: {fault}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

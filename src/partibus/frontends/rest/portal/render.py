"""Templates: the data of a page in HTML. All values are escaped."""

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from partibus.frontends.rest.portal.visit import address
from partibus.frontends.rest.portal.words import duration_text, number_text, size_text, time_text

_FOLDER = Path(__file__).parent / "templates"
STYLE: Final = (_FOLDER / "portal.css").read_text(encoding="utf-8")


class Templates:
    """All of them, read and compiled when this is made."""

    def __init__(self) -> None:
        environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {"n": number_text, "size": size_text, "duration": duration_text, "time": time_text}
        environment.globals |= {"address": address, "percent": percent}
        self._by_name = {
            name.removesuffix(".html"): environment.get_template(name)
            for name in environment.list_templates(extensions=["html"])
        }

    def render(self, name: str, **values: Any) -> str:
        """Return the document."""
        return self._by_name[name].render(**values)


def percent(part: float, whole: float) -> int:
    """0 to 100, and 1 at least where there is any: a bar that can be seen."""
    if part <= 0 or whole <= 0:
        return 0
    return max(1, min(100, round(100 * part / whole)))

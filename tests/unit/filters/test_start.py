"""The parser's library costs a tenth of a second, and brokers without SQL filters do not pay for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from partibus.filters.matcher import Matcher, Subscription
from partibus.filters.model import CorrelationFilter, Rule, SqlFilter, TrueFilter
Matcher([Subscription(1, [Rule("a", TrueFilter()), Rule("b", CorrelationFilter(label="x"))])])
assert "lark" not in sys.modules
Matcher([Subscription(1, [Rule("c", SqlFilter("a = 1"))])])
assert "lark" in sys.modules
"""


def test_the_parser_is_imported_by_the_first_text() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)

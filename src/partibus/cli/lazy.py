"""A group of commands that imports a command when it is called, and turns expected errors into one line."""

import errno
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from partibus.errors import PartibusError


class Lazy(NamedTuple):
    """The location of a command, and its line in the group's `--help`, without an import."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """``commands`` by name, in the order in which they are listed."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Expected errors end it with one line and status 1."""
        try:
            return super().invoke(ctx)
        except PartibusError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(str(error)) from error

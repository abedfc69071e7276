"""`partibus demo`."""

from pathlib import Path
from tempfile import TemporaryFile

import click

from partibus.errors import ArgumentError, Unsupported


@click.command()
@click.option("--rows", type=click.IntRange(1), help="So many flights instead of all 336,776.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Directory of the tables and the reports.",
)
@click.pass_context
def demo(ctx: click.Context, rows: int | None, out: Path) -> None:
    """Run a demonstration of partitioned topics, Spark streams and reports.

    Send real flight records to a partitioned topic, capture its subscriptions with a stream of Spark, prove that each
    message arrived once, and write Parquet tables and reports with plots.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise ArgumentError(
            "--out", str(out), f"a directory that can be made and written ({error.strerror})"
        ) from error
    try:
        from partibus.demo.run import run_demo
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"The demo without {error.name}",
            "Install the demo's dependencies: pip install 'partibus[demo]'.",
        ) from error

    ctx.exit(0 if run_demo(rows, out) else 1)

"""The `spyre-ci` command: each part brings its own commands."""

from __future__ import annotations

import io
import sys

import typer

from openspyre.ci.relay.commands import add_relay_commands
from openspyre.ci.reuse.commands import canary, capability, run
from openspyre.ci.reuse.config_commands import config_commands
from openspyre.ci.select.commands import COMMANDS
from openspyre.ci.select.run_commands import RUN_COMMANDS

app = typer.Typer(
    help="PyTorch's own tests on a device: which run, what is asked of them, what came of it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(capability)
app.command()(run)
app.command()(canary)
for name, command in {**COMMANDS, **RUN_COMMANDS}.items():
    app.command(name)(command)
app.add_typer(config_commands, name="config")
add_relay_commands(app)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding has not, is escaped
            stream.reconfigure(errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()

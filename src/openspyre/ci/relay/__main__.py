"""`python -m openspyre.ci.relay`: the relay's commands alone, which need no torch."""

import typer

from openspyre.ci.relay.commands import add_relay_commands

app = typer.Typer(
    help="Receive upstream's dispatches, and report to its relay.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_relay_commands(app)

if __name__ == "__main__":
    app()

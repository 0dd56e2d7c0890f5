"""Entry point of `fermata`; errors of the operator end in one line and exit code 2."""

import sys

import typer

from fermata.commands.load import load
from fermata.commands.plan import plan
from fermata.commands.policy.policy import policy
from fermata.commands.profile import profile
from fermata.commands.serve import serve
from fermata.commands.simulation import goodput, simulate
from fermata.commands.sneakpeek import app as sneakpeek
from fermata.commands.stream import stream
from fermata.commands.top import top
from fermata.commands.tournament import tournament
from fermata.commands.trace import trace
from fermata.commands.view import view
from fermata.foundation.errors import ConfigError

INTERRUPTED = 130

app = typer.Typer(
    name="fermata",
    help="SLO-first inference serving: simulate, size and serve many models on few GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    serve,
    stream,
    load,
    top,
    profile,
    simulate,
    goodput,
    tournament,
    view,
    trace,
    plan,
):
    app.command()(command)
app.add_typer(sneakpeek)
app.add_typer(policy, name="policy")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except ConfigError as error:
        print(f"fermata: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        # Typer ends so on Ctrl-C, without a word.
        if end.code == INTERRUPTED:
            print("fermata: interrupted", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()

"""`fermata policy`: what policies compute or learn ahead."""

import typer

from fermata.commands.policy.ramsis import ramsis
from fermata.commands.policy.rl import rl

policy = typer.Typer(help="Policies that are computed or learnt ahead.", no_args_is_help=True)
policy.add_typer(ramsis, name="ramsis")
policy.add_typer(rl, name="rl")

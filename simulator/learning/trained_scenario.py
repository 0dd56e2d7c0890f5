"""A scenario that is served by a trained policy; needs no torch."""

from dataclasses import replace
from pathlib import Path

from fermata.simulator.scenario.scenario import Scenario


def served_by(scenario: Scenario, checkpoint: Path) -> Scenario:
    """The scenario with its routing done by this policy."""
    mix = scenario.policy_options.get("mix")
    options = {"checkpoint": str(checkpoint), **({} if mix is None else {"mix": mix})}
    return replace(scenario, policy="rl", policy_options=options)

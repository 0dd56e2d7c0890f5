"""Jellyfish's decisions in the control plane: off the request path, every half second."""

import asyncio
import random
import time
from typing import Any

from deployments.config import DeploymentConfig
from router.policies.catalog import read_options
from router.policies.jellyfish.decision import Decider
from router.policies.jellyfish.problem import Plan
from router.policies.jellyfish.source import JellyfishOptions, Question, make_decider

POLICY = "jellyfish"
TIME_SHARE = 0.8
"""Of the time between two decisions: one that takes longer returns the best it has."""


def mapping_options(config: DeploymentConfig) -> dict[int, JellyfishOptions]:
    """By application: how its clients are mapped, where that is this policy's."""
    found: dict[int, JellyfishOptions] = {}
    for number, application in enumerate(config.applications):
        policy, options = config.router.policy, config.router.policy_options
        if application.policy is not None:
            policy, options = application.policy, application.policy_options
        if policy == POLICY:
            found[number] = read_options(policy, options)
    return found


class Replanner:
    """Asks the router, decides, and tells it, again and again."""

    def __init__(self, router: Any, options: dict[int, JellyfishOptions]) -> None:
        self.router = router
        self.options = options
        self.deciders = {
            number: make_decider(each, random.Random(number)) for number, each in options.items()
        }
        self.every_s = min((each.replan_ns for each in options.values()), default=0) / 1e9

    async def run(self) -> None:
        """Until it is cancelled; without an application of this policy it has nothing to do."""
        while self.deciders:
            started_s = time.monotonic()
            questions: dict[int, Question] = await self.router.questions.remote()
            if questions:
                plans = await asyncio.to_thread(self._decide, questions)
                await self.router.take_plans.remote(plans)
            await asyncio.sleep(max(0.05, started_s + self.every_s - time.monotonic()))

    def _decide(self, questions: dict[int, Question]) -> dict[int, Plan]:
        until_s = time.monotonic() + TIME_SHARE * self.every_s
        plans: dict[int, Plan] = {}
        for number, question in questions.items():
            decider: Decider = self.deciders[number]
            decider.zoo = question.zoo
            plans[number] = decider.decide(
                question.clients, question.workers, lambda: time.monotonic() > until_s
            )
        return plans

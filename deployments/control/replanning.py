"""Jellyfish's decisions in the control plane: off the request path, as often as each application
asks, and at once where a client's network has collapsed."""

import asyncio
import random
from collections.abc import Callable

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.control.cluster import Leader
from fermata.deployments.specs.status import ReplanningStatus
from fermata.foundation.logs import LOG, fields
from fermata.router.policies.catalog import read_options
from fermata.router.policies.jellyfish.mapping_problem import Assignment, MappingProblem, answer
from fermata.router.policies.jellyfish.options import JellyfishOptions, JellyfishRules, make_decider

POLICY = "jellyfish"
TIME_SHARE = 0.8
"""Share of the time between two decisions: one that takes longer returns the best it has."""


def mapping_options(config: DeploymentConfig) -> dict[int, JellyfishOptions]:
    """By application: how its clients are mapped, where that is this policy's."""
    found: dict[int, JellyfishOptions] = {}
    for number, application in enumerate(config.served):
        policy, options = config.router.policy, config.router.policy_options
        if application.policy:
            policy, options = application.policy, application.policy_options
        if policy == POLICY:
            found[number] = read_options(policy, options)
    return found


class Replanner:
    """Asks the router, decides, and tells it, again and again."""

    def __init__(self, router: Leader, options: dict[int, JellyfishOptions]) -> None:
        self.router = router
        self.options = options
        self.deciders = {
            number: make_decider(each, random.Random(number)) for number, each in options.items()
        }
        self.every_s = min((each.replan_ns for each in options.values()), default=0) / 1e9
        self.decisions = 0
        self.decided_s = 0.0
        """How long the last decision took."""
        self.failures = 0
        self.trouble = ""
        """The last failure; empty once it is over."""

    async def run(self) -> None:
        """Until it is cancelled; without an application of this policy it has nothing to do."""
        # The loop's own, which is virtual where faults are simulated.
        clock = asyncio.get_running_loop().time
        while self.deciders:
            started_s = clock()
            try:
                await self._replan(clock)
                self.trouble = ""
            except Exception as error:
                # After any error the router may be back for the next decision, and until then
                # clients stay mapped as they are.
                self.failures += 1
                self.trouble = repr(error)
                LOG.exception(
                    "replanning failed; the client mapping is unchanged",
                    extra=fields(failures=self.failures),
                )
                await asyncio.sleep(self.every_s)
            await asyncio.sleep(max(0.0, started_s + JellyfishRules().soon_ns / 1e9 - clock()))

    async def _replan(self, clock: Callable[[], float]) -> None:
        questions: dict[int, MappingProblem] = await self.router.questions(self.every_s)
        if questions:
            started_s = clock()
            plans = await asyncio.to_thread(self._decide, questions, clock)
            await self.router.take_plans(plans)
            self.decisions += 1
            self.decided_s = clock() - started_s

    def _decide(
        self, questions: dict[int, MappingProblem], clock: Callable[[], float]
    ) -> dict[int, Assignment]:
        until_s = clock() + TIME_SHARE * self.every_s
        return {
            number: answer(self.deciders[number], question, lambda: clock() > until_s)
            for number, question in questions.items()
        }

    def status(self) -> ReplanningStatus:
        """Progress, for `/status` and the metrics."""
        return ReplanningStatus(self.decisions, self.decided_s * 1e3, self.failures, self.trouble)

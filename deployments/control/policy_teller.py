"""Tells the router that leads by which policies it serves, whenever they or the router change."""

import asyncio

from fermata.deployments.control.leader_client import LeaderClient
from fermata.foundation.errors import NoAnswerError, ServingError
from fermata.foundation.logs import LOG, fields
from fermata.router.live.policy_change import PolicySet

LOOK_S = 0.25
"""Between two looks at whether another router leads: it may have started with other policies."""


class PolicyTeller:
    """Keeps the leading router to the policies that are wanted."""

    def __init__(self, router: LeaderClient, wanted: PolicySet) -> None:
        self.router = router
        self.wanted = wanted
        self.told: tuple[int, PolicySet] | None = None
        """Term of the router that was last told, and what."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(LOOK_S)

    async def tell(self) -> None:
        """Tell the leader, unless it knows."""
        news = (self.router.term, self.wanted)
        if news == self.told or news[0] == 0:
            return
        try:
            changed = await self.router.set_policies(self.wanted)
        except NoAnswerError as error:
            LOG.info("router did not take the policies", extra=fields(reason=error))
            return
        except ServingError as error:
            # It serves on as before, and would refuse them again.
            LOG.error("router refused the policies", extra=fields(reason=error))
            changed = []
        self.told = news
        if changed:
            LOG.info("policies changed", extra=fields(applications=", ".join(changed)))

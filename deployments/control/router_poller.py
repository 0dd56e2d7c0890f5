"""Looks at the router once a second, so that whoever asks hears of the last minute too."""

import asyncio
from dataclasses import replace

from fermata.deployments.control.canaries import Canaries
from fermata.deployments.control.cluster import Leader
from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import live_frame
from fermata.deployments.control.scaling import ScalingLoop
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import LOG, fields
from fermata.router.telemetry.snapshot import RouterSnapshot

LOOK_S = 1.0
WATCHED_S = 5.0
"""After the last one who asked for a frame, batches are not asked for any more."""


class RouterPoller:
    """The control plane's memory of how the router has fared. However many look at the page, the
    router is asked once a second."""

    def __init__(self, router: Leader, title: str, tried: Canaries, copy_s: float = 0.25) -> None:
        """A status of `copy_s` is handed out once more: each new one stops the router's loop."""
        self.copy_s = copy_s
        self.router = router
        self.canaries = tried
        self.title = title
        self.history = History()
        self.latest: DeploymentStatus | None = None
        self.shown = "{}"
        """The frame of the latest look, once somebody has asked for it."""
        self.scaling: ScalingLoop | None = None
        """Its advice is told too, where there is one."""
        self.loop = asyncio.get_running_loop()
        self.asked_at_s = -WATCHED_S
        self.asked: asyncio.Task[DeploymentStatus] | None = None
        """The last question for `status`."""
        self.answered_at_s = 0.0
        self.task = self.loop.create_task(self._look())

    def rated(self, snapshot: RouterSnapshot) -> DeploymentStatus:
        """The snapshot, with figures that follow from it and from the last minute."""
        return DeploymentStatus(
            snapshot,
            self.history.bad_rates(snapshot),
            self.history.idle_fractions(snapshot),
            None if self.scaling is None else self.scaling.status(snapshot),
            promises=self.history.promises(snapshot),
        )

    async def status(self) -> DeploymentStatus:
        """The state now, or a moment ago: however many ask, the router is asked a few times a
        second at most."""
        asked = self.asked
        if asked is None or (asked.done() and self._is_old(asked)):
            asked = self.asked = self.loop.create_task(self._ask())
        # Shielded: one who gives up must not take the answer from the others.
        return await asyncio.shield(asked)

    async def _ask(self) -> DeploymentStatus:
        status = self.rated(await self.router.snapshot())
        self.answered_at_s = self.loop.time()
        return status

    def _is_old(self, asked: "asyncio.Task[DeploymentStatus]") -> bool:
        failed = asked.cancelled() or asked.exception() is not None
        return failed or self.loop.time() - self.answered_at_s > self.copy_s

    def frame(self) -> str:
        """The last second, for the page; an empty object before there is one."""
        self.asked_at_s = self.loop.time()
        if self.latest is not None and not self.shown:
            self.shown = live_frame(self.latest, self.history, self.title).to_json()
        return self.shown

    def check(self) -> None:
        """Raise what has ended the looking."""
        if self.task.done() and not self.task.cancelled():
            self.task.result()

    def stop(self) -> None:
        self.task.cancel()
        if self.asked is not None:
            self.asked.cancel()

    async def _look(self) -> None:
        while True:
            try:
                if self.loop.time() - self.asked_at_s < WATCHED_S:
                    told = await self.router.observe()
                else:
                    told = await self.router.snapshot()
                self._keep(told)
                for application, reason in self.canaries.judge(told).items():
                    about = fields(application=application, reason=reason)
                    LOG.warning("canary withdrawn", extra=about)
                    await self.router.withdraw(application, reason)
                    self.canaries.on_told(application, told.term)
            except NoAnswerError as error:
                # It is on its way back, or the control plane itself is about to end.
                LOG.info("router did not answer", extra=fields(reason=error))
            await asyncio.sleep(LOOK_S)

    def _keep(self, told: RouterSnapshot) -> None:
        self.latest = self.rated(told)
        self.history.add(replace(told, recent=None))
        self.shown = ""

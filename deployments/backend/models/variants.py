"""Variants of a backend: loaded, being loaded, or to be unloaded after their last batch."""

import asyncio
from collections.abc import Callable, Iterable

from fermata.deployments.backend.execution.runners.runner import Runner, RunnerStore, innermost
from fermata.deployments.backend.execution.runners.sequences import SequenceRunner
from fermata.deployments.backend.isolation.model import down, isolated
from fermata.deployments.backend.meter import FailureReasons
from fermata.foundation.logs import LOG, fields


class Variants:
    """Loads and unloads variants as the router asks; all methods on the loop's thread."""

    def __init__(
        self,
        runners: dict[str, Runner],
        store: RunnerStore | None,
        failures: FailureReasons,
        busy: Callable[[], Iterable[str]],
        announce: Callable[[], None],
        announce_soon: Callable[[], None],
    ) -> None:
        """`busy` gives the variants that have batches here. `announce` is called whenever others
        can run; `announce_soon` is the same, from any thread."""
        self.runners = runners
        """By variant; loaded and warm."""
        self.store = store
        """Loads more variants; None if the set is fixed."""
        self.failures = failures
        self.busy = busy
        self.announce = announce
        self.announce_soon = announce_soon
        self.leaving: set[str] = set()
        """Variants that get no new batch, and are unloaded after those they have."""
        self.loading: dict[str, bool] = {}
        """Variants that are being loaded, each with whether it is still wanted."""
        self.trouble: dict[str, str] = {}
        """Errors of the last load, by variant."""

    def status(self) -> tuple[set[str], dict[str, str]]:
        """Variants that can get batches, and errors of those that cannot run."""
        ended = down(self.runners)
        lost = {variant: reason for variant, reason in ended.items() if reason}
        return self.runners.keys() - self.leaving - ended.keys(), {**self.trouble, **lost}

    def sequence_runners(self) -> list[SequenceRunner]:
        runners = map(innermost, self.runners.values())
        return [each for each in runners if isinstance(each, SequenceRunner)]

    def add(self, variant: str, runner: Runner) -> None:
        self.runners[variant] = runner
        self.watch(runner)

    def watch(self, runner: Runner) -> None:
        """Announce a model with a process of its own anew when that ends, and when it is back."""
        model = isolated(runner)
        if model is not None:
            model.on_change = self.announce_soon

    async def load(self, variant: str) -> None:
        """Load a variant, unless it is here or on its way."""
        self.leaving.discard(variant)
        self.trouble.pop(variant, None)
        if variant in self.loading:
            # Asked for twice, or wanted again after all: one load is in progress.
            self.loading[variant] = True
            return
        if variant not in self.runners and self.store is not None:
            self.loading[variant] = True
            try:
                load, loop = self.store.load, asyncio.get_running_loop()
                self.add(variant, await loop.run_in_executor(None, load, variant))
                LOG.info("model loaded", extra=fields(variant=variant))
            # A model is a user's code and may raise anything; the router hears of it.
            except Exception as error:
                self.trouble[variant] = str(error) or type(error).__name__
                self.failures.count(f"{variant}: {error}")
            if not self.loading.pop(variant) and variant in self.runners:
                self.leaving.add(variant)
        self.announce()
        self.unload_leaving()

    def unload(self, variant: str) -> None:
        """Give a variant no new batch, and unload it once it has none."""
        if variant in self.runners:
            self.leaving.add(variant)
        elif variant in self.loading:
            self.loading[variant] = False
        self.announce()
        self.unload_leaving()

    def unload_leaving(self) -> None:
        """Unload variants that are leaving and have no batch here any more."""
        for variant in self.leaving.difference(self.busy()):
            self.leaving.discard(variant)
            runner = self.runners.pop(variant)
            runner.close()
            LOG.info("model unloaded", extra=fields(variant=variant))
            if self.store is not None:
                self.store.release(variant)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()

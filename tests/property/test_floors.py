"""No policy runs a request on a variant below a floor, the application's or the client's own."""

import random
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import examples

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import ClientReport, Compute, Dispatch, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.rl.checkpoint import Checkpoint, save_checkpoint
from fermata.router.policies.rl.network import PolicyNetwork
from fermata.router.policies.rl.observation import Scales, width

SLO_NS = ms(60)
SIZES = 4
CHOOSING = [name for name, policy in POLICIES.items() if policy.chooses]
MIXED = ("routing", "rl", "single-queue")
"""Policies that take a `mix`."""


class FloorWorld:
    """A router of one application, driven by events that a seed draws."""

    def __init__(self, policy: str, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.spec = self._family()
        self.config = RouterConfig(
            (self.spec,), policy, self._options(folder), lead_ns=self.rng.choice((0, ms(1)))
        )
        self.agenda: list[tuple[int, int, int, int]] = []
        """Ends of batches: (when, tie-break, backend, life)."""
        self.lives = [0] * 3
        self.up: set[int] = set()
        self.ran = 0
        self.choosy = 0

    def names_barred(self) -> bool:
        """Whether the mix asks for instances of a variant below the application's floor."""
        mix = self.config.policy_options.get("mix")
        weights = [int(each) for each in str(mix).split("/")] if mix else []
        pairs = zip(weights, self.spec.accuracies, strict=False)
        return any(weight and each < self.spec.accuracy_floor for weight, each in pairs)

    def start(self) -> None:
        self.built = assemble(self.config)
        self.engine = self.built.engine
        self.family = self.built.families[0]

    def _family(self) -> ApplicationSpec:
        rng = self.rng
        rows = []
        for place in range(rng.randint(2, 4)):
            alone_ms, more_ms = rng.choice((2, 5, 9, 20)), rng.choice((0, 1, 3))
            table = tuple(ms(alone_ms + more_ms * size) for size in range(SIZES))
            accuracy = rng.choice((0.5, 0.6, 0.7, 0.8, 0.9))
            size = rng.choice((128, 160, 160, 224))
            rows.append(VariantSpec(f"v{place}", table, accuracy=accuracy, input_size=size))
        best = max(each.accuracy or 0.0 for each in rows)
        floor = rng.choice((0.0, 0.55, 0.75, best))
        return ApplicationSpec("app", SLO_NS, tuple(rows), accuracy_floor=min(floor, best))

    def _options(self, folder: Path) -> dict[str, object]:
        count, options = len(self.spec.variants), dict[str, object]()
        if self.policy == "model-switching":
            options["sustained_rps"] = [self.rng.choice((10.0, 100.0)) for _ in range(count)]
        if self.policy == "ramsis":
            options = {"bins": 8, "queue_max": 4, "load_rps": 100.0}
        if self.policy in MIXED and self.rng.random() < 0.7:
            weights = [self.rng.randint(0, 2) for _ in range(count)]
            if any(weights):
                options["mix"] = "/".join(str(each) for each in weights)
        if self.policy == "rl":
            options["checkpoint"] = str(self._train(folder, count))
        return options

    def _train(self, folder: Path, count: int) -> Path:
        scales = Scales(buffer=4, slo_ns=SLO_NS)
        tiers = tuple(sorted(self.rng.randrange(count) for _ in range(self.rng.randint(1, 3))))
        inputs = width(len(tiers), scales)
        draw = np.random.default_rng(self.rng.randrange(2**16)).standard_normal
        network = PolicyNetwork((draw((inputs, len(tiers))),), (draw(len(tiers)),))
        low, high = np.zeros(inputs), np.full(inputs, 9.0)
        checkpoint = Checkpoint(network, tiers, scales, ms(20), low, high)
        save_checkpoint(checkpoint, folder / "policy.json")
        return folder / "policy.json"

    # Events

    def play(self) -> None:
        now_ns = 0
        for backend in range(self.rng.randint(1, 3)):
            self.bring_up(0, backend)
        for rid in range(self.rng.randint(10, 60)):
            now_ns += int(self.rng.expovariate(1.0) * ms(6))
            self.run_until(now_ns)
            chance = self.rng.random()
            if chance < 0.06:
                self.toggle(now_ns)
            elif chance < 0.15:
                self.report(now_ns)
            request = Request(rid, 0, now_ns, now_ns + SLO_NS, client=self.rng.randint(1, 4))
            if self.rng.random() < 0.5:
                floor = self.rng.choice((0.0, 0.6, 0.65, 0.8, 0.9, 0.95))
                request.allowed = self.family.above(floor)
                self.choosy += 1
            self.engine.on_request(now_ns, request)
            self.carry_out(now_ns)
        self.run_until(NEVER - 1)
        assert not self.engine.outbox.queued

    def bring_up(self, now_ns: int, backend: int) -> None:
        self.up.add(backend)
        owner = self.built.ownership.take(backend)
        self.engine.on_backend_up(now_ns, backend, owner=owner)
        self.carry_out(now_ns)

    def toggle(self, now_ns: int) -> None:
        backend = self.rng.randrange(3)
        if backend not in self.up:
            self.bring_up(now_ns, backend)
        else:
            self.up.discard(backend)
            self.lives[backend] += 1
            self.built.ownership.release(backend)
            self.engine.on_backend_down(now_ns, backend)
            self.carry_out(now_ns)

    def report(self, now_ns: int) -> None:
        floor = self.rng.choice((0.0, 0.0, 0.65, 0.8))
        said = ClientReport(self.rng.randint(1, 4), SLO_NS, 10.0, 1e8, accuracy_floor=floor)
        self.engine.on_report(now_ns, 0, said)
        self.carry_out(now_ns)

    def run_until(self, to_ns: int) -> None:
        now_ns = 0
        while True:
            end_ns = self.agenda[0][0] if self.agenda else NEVER
            wake_ns = max(now_ns, self.engine.wake_at_ns())
            if min(end_ns, wake_ns, 100 * SECOND) > to_ns or min(end_ns, wake_ns) > 100 * SECOND:
                return
            now_ns = max(self.engine.timers.fired_at_ns, min(end_ns, wake_ns))
            if end_ns <= wake_ns:
                _, _, backend, life = heappop(self.agenda)
                if self.lives[backend] == life:
                    batch = self.engine.backend(backend).running
                    assert batch is not None
                    self.engine.on_done(now_ns, backend, batch.expect_ns)
            else:
                self.engine.on_time(now_ns)
            self.carry_out(now_ns)

    def carry_out(self, now_ns: int) -> None:
        while effects := self.engine.take_effects():
            for effect in effects:
                if isinstance(effect, Compute):
                    self.engine.on_computed(now_ns, effect.application, effect.work())
                elif isinstance(effect, Dispatch):
                    self.check(effect)
                    batch, backend = effect.batch, effect.backend
                    end_ns = max(now_ns, batch.start_at_ns) + batch.expect_ns
                    entry = end_ns, batch.batch_id, backend, self.lives[backend]
                    heappush(self.agenda, entry)

    def check(self, effect: Dispatch) -> None:
        variant = effect.batch.variant
        accuracy = self.family.accuracy[self.family.variants.index(variant)]
        assert accuracy >= self.spec.accuracy_floor, "the application's floor is broken"
        for request in effect.batch.requests:
            assert request.allowed is None or variant in request.allowed, "a client's floor is"
            self.ran += 1


@pytest.mark.parametrize("policy", CHOOSING)
@examples(60)
@given(seed=st.integers(0, 2**20))
def test_a_floor_is_never_broken(policy: str, seed: int) -> None:
    with TemporaryDirectory() as folder:
        world = FloorWorld(policy, seed, Path(folder))
        if world.names_barred():
            with pytest.raises(ConfigError, match=r"mix=.* below accuracy_floor=.*; give it 0"):
                assemble(world.config)
            return
        world.start()
        world.play()
    assert world.ran or world.choosy

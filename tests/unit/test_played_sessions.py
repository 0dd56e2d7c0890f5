"""Sequences of many clients, played at random with the engine, and simulated."""

import random
from collections import Counter
from heapq import heappop, heappush

import pytest
from test_sessions import engine_of, step

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.core.events import (
    Batch,
    Dispatch,
    Drop,
    DropReason,
    EndSession,
)
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

TOLD = (DropReason.SEQUENCE_LOST, DropReason.FAILED, DropReason.HUNG)
"""Ends after which a sequence has to be started anew."""
LATE_MS = 40


class World:
    """Clients, the engine, and backends whose model adds up the steps of each sequence."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 0
        self.agenda: list[tuple[int, int, int]] = []
        self.engine = engine_of(0, sequence_idle_ns=ms(self.rng.choice((50, 500, 60_000))))
        self.states: dict[int, dict[int, int]] = {}
        """By backend and sequence: the last step that ran there."""
        self.running: dict[int, list[Batch]] = {}
        self.clients = {key: self._client(key) for key in range(1, 9)}
        self.steps: dict[int, tuple[int, int, bool]] = {}
        """By rid: sequence, the step's number within it, whether it started one."""
        self.ends: Counter[int] = Counter()
        self.told: Counter[tuple[int, int]] = Counter()
        """By sequence and the generation that its loss ended."""

    def _client(self, key: int) -> dict[str, int]:
        return {"generation": 0, "step": 0, "started": 0}

    def send(self, rid: int) -> None:
        key = self.rng.randint(1, 8)
        client = self.clients[key]
        start = not client["started"] or self.rng.random() < 0.05
        if start:
            client["generation"] += 1
            client["step"] = 0
        client["step"] += 1
        end = self.rng.random() < 0.1
        client["started"] = 0 if end else 1
        # Steps carry their generation, so that a state of another one shows.
        value = client["generation"] * 1000 + client["step"]
        self.steps[rid] = (key, value, start)
        request = step(rid, self.now_ns, key, start, end)
        request.deadline_ns = self.now_ns + ms(self.rng.choice((5, LATE_MS, 200)))
        request.expires_at_ns = request.deadline_ns
        self.engine.on_request(self.now_ns, request)

    def play(self, rounds: int) -> None:
        for backend in range(self.rng.randint(0, 3)):
            self.up(backend)
        for rid in range(rounds):
            self.wait(self.rng.choice((0, 0, ms(1), ms(4))))
            self.send(rid)
            drawn = self.rng.random()
            if drawn < 0.03:
                self.up(max(self.states, default=0) + 1)
            elif drawn < 0.06 and self.states:
                self.down(self.rng.choice(sorted(self.states)))
            elif drawn < 0.09:
                self.engine.on_cancel(self.now_ns, self.rng.randrange(rid + 1))
            elif drawn < 0.1 and self.states:
                self.engine.on_drain(self.now_ns, self.rng.choice(sorted(self.states)))
            self.carry_out()
        self.up(999)
        self.wait(seconds(1))
        assert not self.engine.outbox.queued
        assert dict(self.ends) == dict.fromkeys(range(rounds), 1), "each ends exactly once"
        assert set(self.told.values()) <= {1}, "a loss is told once"

    def up(self, backend: int) -> None:
        self.states[backend] = {}
        self.running[backend] = []
        self.engine.on_backend_up(self.now_ns, backend)

    def down(self, backend: int) -> None:
        del self.states[backend]
        del self.running[backend]
        self.engine.on_backend_down(self.now_ns, backend)

    def wait(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while True:
            self.carry_out()
            done_ns = self.agenda[0][0] if self.agenda else NEVER
            due_ns = min(done_ns, self.engine.wake_at_ns())
            if due_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            if done_ns == due_ns:
                _, backend, number = heappop(self.agenda)
                if any(batch.batch_id == number for batch in self.running.get(backend, ())):
                    self.finish(backend)
            else:
                self.engine.on_time(self.now_ns)
        self.now_ns = until_ns

    def finish(self, backend: int) -> None:
        batch = self.running[backend].pop(0)
        drawn = self.rng.random()
        if drawn < 0.05:
            self.engine.on_done(self.now_ns, backend, ms(3), 0, "oops", batch.requests)
            return
        states = self.states[backend]
        keys = [self.steps[request.rid][0] for request in batch.requests]
        assert len(set(keys)) == len(keys), "a sequence is in a batch once"
        for request in batch.requests:
            key, value, start = self.steps[request.rid]
            before = 0 if start else states[key]
            assert start or before // 1000 == value // 1000, "this is another sequence's state"
            assert before % 1000 < value % 1000 or start, "steps run in order"
            states[key] = value
        lost = batch.requests[:1] if drawn < 0.08 else []
        for request in batch.requests:
            self.ends[request.rid] += request not in lost
        self.engine.on_done(self.now_ns, backend, ms(3), left_out=lost)

    def carry_out(self) -> None:
        while self.engine.outbox.effects:
            for effect in self.engine.take_effects():
                if isinstance(effect, Dispatch) and self.engine.is_current(effect):
                    batches = self.running[effect.backend]
                    batches.append(effect.batch)
                    entry = (self.now_ns + ms(3), effect.backend, effect.batch.batch_id)
                    heappush(self.agenda, entry)
                elif isinstance(effect, Drop):
                    self._on_drop(effect)
                elif isinstance(effect, EndSession):
                    self.states.get(effect.backend, {}).pop(effect.key, None)

    def _on_drop(self, drop: Drop) -> None:
        rid = drop.request.rid
        self.ends[rid] += 1
        key, value, _ = self.steps[rid]
        if drop.reason in TOLD:
            self.told[(key, value // 1000)] += 1
            if value // 1000 == self.clients[key]["generation"]:
                self.clients[key]["started"] = 0
        elif drop.reason == DropReason.NO_SEQUENCE:
            self.clients[key]["started"] = 0


@pytest.mark.parametrize("seed", range(60))
def test_sequences_keep_order_place_and_state_whatever_happens(seed: int) -> None:
    World(seed).play(400)


# The simulator


def tracked(**options: object) -> dict[str, object]:
    return {
        "applications": [
            {
                "name": "tracker",
                "slo_ms": 60,
                "sequences": True,
                "sequence_length": 20,
                "variants": [{"name": "tracker-1", "alpha_ms": 1, "beta_ms": 4}],
                "clients": [{"count": 40, "fps": 10}],
            }
        ],
        "arrivals": {"process": "periodic"},
        "backends": 2,
        "duration_s": 10,
        **options,
    }


def test_simulated_sequences_are_served_in_batches() -> None:
    log = simulate(read_scenario(tracked()))
    assert not log.reasons
    assert max(size for *_, size in log.batches) > 4
    where = {log.batches[each][0] for each in log.batch.tolist()}
    assert where == {0, 1}, "sequences are spread"


def test_a_simulated_crash_tells_each_of_its_sequences_once() -> None:
    faults = [{"at_s": 5, "backend": 0, "kind": "crash", "for_s": 2}]
    log = simulate(read_scenario(tracked(faults=faults)))
    reasons = Counter(log.reasons.values())
    told = {log.arrivals.client[rid] for rid, why in log.reasons.items() if why == "sequence-lost"}
    assert len(told) == reasons["sequence-lost"] == 20, "half of the clients, each of them once"
    assert reasons.keys() <= {"sequence-lost", "no-sequence", "late"}
    assert reasons.total() < 60, "the others, and new sequences, are served"


def test_simulated_sequences_need_clients() -> None:
    scenario = tracked(rate_rps=10)
    scenario["applications"][0]["clients"] = []  # type: ignore[index]
    with pytest.raises(ConfigError, match="sequences=True: needs clients"):
        read_scenario(scenario)

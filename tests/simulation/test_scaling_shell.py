"""The control plane's shell of the control loop, with a router and a solver that may fail."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
from snapshots import application, router, sub_cluster

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.scaling import ScalingLoop
from fermata.deployments.specs.status import ScalingStatus
from fermata.fault_simulator.environment.world import VirtualLoop, World, new_process
from fermata.foundation.errors import ConfigError, NoAnswerError
from fermata.foundation.units import SECOND, seconds
from fermata.partitioner.plan import Plan, Problem
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot

RATES = {"a": 300.0, "b": 100.0, "c": 100.0}
FIRST = Plan({"a": 0, "b": 0, "c": 1})
SECOND_PLAN = Plan({"a": 0, "b": 1, "c": 1})
LOAD_S = 1.0


class Leader:
    """A router that loads for a second before it serves from a new home."""

    term = 3

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.began_s = loop.time()
        self.home = dict.fromkeys(RATES, 0)
        self.going: tuple[float, Plan] | None = None
        self.wanted: list[int] = []
        self.fails: dict[str, int] = {}
        """Calls of each method that come to nothing from now on."""
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            raise NoAnswerError("the answer was lost")

    async def snapshot(self) -> RouterSnapshot:
        self._called("snapshot")
        now_s = self.loop.time()
        if self.going is not None and now_s >= self.going[0]:
            self.home |= self.going[1].home
            self.going = None
        up_s = now_s - self.began_s
        away = [] if self.going is None else self.going[1].away(Plan(self.home))
        counts = {name: int(rate * up_s) for name, rate in RATES.items()}
        return router(
            {name: application(requests=count, good=count) for name, count in counts.items()},
            up_ns=int(up_s * SECOND),
            term=self.term,
            wanted=list(self.wanted),
            placement=PlacementSnapshot(dict(self.home), {}, list(away)),
            ranks=[
                sub_cluster(
                    backends=2,
                    backend_up_ns=int(2 * up_s * SECOND),
                    backend_busy_ns=int(0.2 * up_s * SECOND),
                )
            ]
            * 2,
        )

    async def place(self, plan: Plan) -> list[str]:
        self._called("place")
        self.going = (self.loop.time() + LOAD_S, plan)
        return []

    async def set_target(self, wanted: list[int]) -> None:
        self._called("set_target")
        self.wanted = wanted


class Solvers:
    """Plans, or reasons why there is none, one for each problem."""

    def __init__(self, *answers: Plan | Exception) -> None:
        self.answers = list(answers)
        self.problems: list[Problem] = []

    async def solve(self, problem: Problem, limit_s: float) -> Plan:
        self.problems.append(problem)
        await asyncio.sleep(limit_s)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def backends_there(self) -> int:
        return 4

    async def device_bytes(self) -> int:
        return 0


class Shell:
    """A control loop in a process of its own, on virtual time."""

    def __init__(self, solvers: Solvers, plan_file: str = "", **autoscaler: object) -> None:
        self.world = World(2)
        self.process = new_process(self.world, "control")
        self.solvers = solvers
        self.config = read_config(
            {
                "applications": [
                    {
                        "name": name,
                        "slo_ms": 100,
                        "variants": [{"name": f"{name}-1", "alpha_ms": 1, "beta_ms": 5}],
                    }
                    for name in RATES
                ],
                "autoscaler": {"window_s": 1, "maximum": 8, **autoscaler},
                "epochs": {"every_s": 5, "solve_s": 2, "plan_file": plan_file},
            }
        )
        self.process.may_fail = (ConfigError, NoAnswerError)
        self.leader = Leader(self.process)
        self.process.start(self._start)

    async def _start(self) -> None:
        profiles = known_profiles(self.config)
        self.scaling = ScalingLoop(self.config, profiles, self.leader, self.solvers)  # type: ignore[arg-type]
        await self.scaling.start()
        self.ready_at_ns = self.world.now_ns

    def run(self, span_s: float) -> None:
        self.world.run_until(self.world.now_ns + seconds(span_s))
        assert not self.world.trouble
        self.scaling.check()

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(200):
            if holds():
                return
            self.run(0.1)
        raise AssertionError("it never came")

    @property
    def placed(self) -> dict[str, int]:
        return self.leader.home


def test_it_is_ready_once_the_first_plan_holds() -> None:
    shell = Shell(Solvers(FIRST))
    shell.run(2.9)
    assert not hasattr(shell, "ready_at_ns")
    shell.run(0.5)
    assert shell.ready_at_ns
    assert shell.placed == FIRST.home


def test_it_does_not_start_without_a_first_plan() -> None:
    shell = Shell(Solvers(ConfigError("no plan is possible")))
    shell.run(5)
    assert not hasattr(shell, "ready_at_ns")


def test_windows_go_on_while_a_plan_is_sought_and_applied() -> None:
    shell = Shell(Solvers(FIRST, SECOND_PLAN))
    shell.until(lambda: len(shell.solvers.problems) == 2)
    before = shell.leader.calls.count("set_target")
    shell.until(lambda: shell.placed == SECOND_PLAN.home)
    assert shell.leader.calls.count("set_target") >= before + 2


def test_a_solver_that_fails_leaves_the_last_placement() -> None:
    shell = Shell(Solvers(FIRST, ConfigError("no plan"), NoAnswerError("it died"), SECOND_PLAN))
    shell.until(lambda: len(shell.solvers.problems) == 4)
    assert shell.placed == FIRST.home
    shell.until(lambda: shell.placed == SECOND_PLAN.home)


@pytest.mark.parametrize("method", ["snapshot", "place", "set_target"])
def test_a_lost_answer_loses_nothing_for_good(method: str) -> None:
    shell = Shell(Solvers(FIRST, SECOND_PLAN))
    shell.until(lambda: hasattr(shell, "ready_at_ns"))
    shell.leader.fails[method] = 3
    shell.until(lambda: shell.placed == SECOND_PLAN.home)
    assert len(shell.solvers.problems) == 2
    shell.until(lambda: shell.leader.wanted == [1, 1])
    assert shell.scaling.targets == [1, 1]


def test_the_plan_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shell = Shell(Solvers(FIRST, SECOND_PLAN), str(path))
    shell.until(lambda: hasattr(shell, "ready_at_ns"))
    assert json.loads(path.read_text())["plan"] == {"0": ["a", "b"], "1": ["c"]}
    shell.until(lambda: shell.placed == SECOND_PLAN.home)
    shell.run(1)
    assert json.loads(path.read_text())["plan"] == {"0": ["a"], "1": ["b", "c"]}
    other = Shell(Solvers(), str(path))
    other.until(lambda: hasattr(other, "ready_at_ns"))
    assert other.placed == SECOND_PLAN.home
    path.write_text('{"plan": {"0": ["a", "gone"]}}')
    third = Shell(Solvers(FIRST), str(path))
    third.until(lambda: hasattr(third, "ready_at_ns"))
    assert third.placed == FIRST.home


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    shell = Shell(Solvers(FIRST, SECOND_PLAN), str(tmp_path / "no such folder" / "plan.json"))
    shell.until(lambda: shell.placed == SECOND_PLAN.home)


def test_status_has_advice_plan_and_moves() -> None:
    shell = Shell(Solvers(FIRST, SECOND_PLAN), minimum=2)
    shell.until(lambda: shell.placed == SECOND_PLAN.home)
    shell.run(1)
    told: list[ScalingStatus] = []

    async def ask() -> None:
        told.append(shell.scaling.status(await shell.leader.snapshot()))

    shell.process.start(ask)
    shell.run(0.1)
    assert told[0].plan == {"a": "0", "b": "1", "c": "1"}
    assert told[0].moved == 1
    assert len(told[0].advice) == 2

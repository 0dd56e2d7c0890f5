"""Mappings made off the request path: who asks whom, how soon, and what goes wrong."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from snapshots import rated

from fermata.deployments.control.page.history import History
from fermata.deployments.control.replanning import Replanner
from fermata.deployments.metrics.families import prometheus_text
from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    PROTOCOL,
    ClientNetworkReport,
    Hello,
    InputSizeAdvice,
    Message,
    Ready,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.jellyfish.mapping_problem import Assignment, MappingProblem, answer
from fermata.router.policies.jellyfish.options import JellyfishOptions, make_decider

SIZES = (128, 224, 320)
TABLES = (
    (ms(10), ms(14), ms(18)),
    (ms(15), ms(22), ms(29)),
    (ms(25), ms(40), ms(55)),
)


class Link:
    """A frontend or backend that remembers what it was told."""

    def __init__(self, role: str, number: int) -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, "host:1", "node")
        self.said: list[Message] = []

    def send(self, message: Message) -> None:
        self.said.append(message)

    def flush(self) -> None:
        pass

    def close(self, code: CloseCode, detail: str) -> None:
        raise AssertionError(detail)


class Wake:
    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def close(self) -> None:
        self.at_ns = NEVER


class World:
    """A live router of two applications with the same clients, in virtual time."""

    def __init__(self, replan_ms: tuple[int, int] = (500, 500)) -> None:
        self.now_ns = SECOND
        self.soon: list[Callable[[], None]] = []
        applications = tuple(
            ApplicationSpec(
                name,
                ms(100),
                tuple(
                    VariantSpec(f"{name}-{size}", table, accuracy=share, input_size=size)
                    for size, table, share in zip(SIZES, TABLES, (0.3, 0.5, 0.6), strict=True)
                ),
                policy="jellyfish",
                policy_options={"replan_ms": each_ms},
            )
            for name, each_ms in zip(("faces", "cars"), replan_ms, strict=True)
        )
        config = RouterConfig(applications, "jellyfish", {}, lead_ns=0)
        self.router = LiveRouter(config, 1, lambda: self.now_ns, self.soon.append, lambda _: Wake())
        self.frontends = [Link("frontend", number) for number in (1, 2)]
        for each in self.frontends:
            self.router.on_up(each)
        names = tuple(f"{name}-{size}" for name in ("faces", "cars") for size in SIZES)
        for number in (5, 6):
            backend = Link("backend", number)
            self.router.on_up(backend)
            self.hear(backend, Ready("emulated", names))

    def hear(self, link: Link, *messages: Message) -> None:
        self.router.on_messages(link, list(messages))
        self.settle()

    def settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def report(self, application: str, mbps: float, frontend: int = 0, client: int = 9) -> None:
        said = ClientNetworkReport(
            application, client, ms(100), 10.0, mbps * 1e6, 128, 100_000, ms(2)
        )
        self.hear(self.frontends[frontend], said)

    def replan(self) -> None:
        deciders = {number: make_decider(JellyfishOptions(), random.Random(0)) for number in (0, 1)}
        plans = {
            number: answer(deciders[number], question)
            for number, question in self.router.clients.questions(self.now_ns).items()
        }
        self.router.take_plans(plans)
        self.settle()

    def advised(self, frontend: int) -> list[tuple[str, int]]:
        said = [each for each in self.frontends[frontend].said if isinstance(each, InputSizeAdvice)]
        return [(each.application, each.input_size) for each in said]


def test_client_of_two_applications_has_advice_of_each() -> None:
    world = World()
    world.report("faces", 50, frontend=0)
    world.report("cars", 1.5, frontend=1)
    world.replan()
    assert world.advised(0) == [("faces", 320)]
    assert world.advised(1) == [("cars", 128)]


def test_decision_is_urgent_where_a_network_collapses() -> None:
    world = World()
    calls: list[int] = []
    world.router.clients.on_urgent = lambda: calls.append(world.now_ns)
    world.report("faces", 50)
    assert len(calls) == 1, "a new client wants a mapping"
    world.replan()
    for _ in range(3):
        world.now_ns += ms(100)
        world.report("faces", 48)
    assert len(calls) == 1
    assert not world.router.clients.urgent
    world.report("faces", 20)
    assert len(calls) == 2
    assert world.router.clients.urgent
    world.replan()
    assert not world.router.clients.urgent


def test_client_that_comes_back_elsewhere_hears_at_once() -> None:
    world = World()
    world.report("faces", 50, frontend=0)
    world.replan()
    world.report("faces", 50, frontend=1)
    assert world.advised(1) == [("faces", 320)]
    world.report("faces", 50, frontend=1)
    assert world.advised(1) == [("faces", 320)], "once is enough"


def test_frontend_that_lost_its_link_hears_again() -> None:
    world = World()
    world.report("faces", 50)
    world.replan()
    lost = world.frontends[0]
    world.router.on_down(lost, Closed(CloseCode.LOST, "end of file"))
    world.frontends[0] = Link("frontend", 1)
    world.router.on_up(world.frontends[0])
    world.report("faces", 50)
    assert world.advised(0) == [("faces", 320)]


def test_each_application_is_planned_as_often_as_it_asks() -> None:
    world = World((200, 1000))
    for name in ("faces", "cars"):
        world.report(name, 50)
    clients, asked = world.router.clients, []
    until_ns = world.now_ns + SECOND
    while world.now_ns < until_ns:
        asked.append(sorted(clients.questions(world.now_ns)))
        world.now_ns = clients.due_at_ns()
        world.report("faces", 50)
        world.report("cars", 50)
    assert asked == [[0, 1], [0], [0], [0], [0]]


def test_question_is_a_copy_of_plain_values() -> None:
    """What the router hears while somebody decides does not change what it is decided from."""
    world = World()
    world.report("faces", 50)
    question = world.router.clients.questions(world.now_ns)[0]
    before = repr(question)
    world.report("faces", 2)
    assert repr(question) == before
    (wish,) = question.wishes
    assert (wish.number, wish.bandwidth_bps, wish.bits_by_side) == (9, 50e6, {128: 100_000})


class Calls:
    """Stands for a method of a router far away."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    async def __call__(self, *given: Any) -> Any:
        await asyncio.sleep(0)
        return self.call(*given)


class Actor:
    """A router that fails at first and then asks the same question for ever."""

    def __init__(self, failures: int, question: MappingProblem) -> None:
        self.failures = failures
        self.question = question
        self.plans: list[dict[int, Assignment]] = []
        self.questions = Calls(self._questions)
        self.take_plans = Calls(self.plans.append)

    def _questions(self, wait_s: float) -> dict[int, MappingProblem]:
        assert wait_s == 0.01
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the router starts anew")
        return {0: self.question}


def test_failure_does_not_end_replanning(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.report("faces", 50)
    actor = Actor(2, world.router.clients.questions(world.now_ns)[0])
    replanner = Replanner(actor, {0: JellyfishOptions(replan_ns=ms(10))})

    async def until_decided() -> None:
        running = asyncio.ensure_future(replanner.run())
        while not replanner.decisions:
            await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(asyncio.wait_for(until_decided(), 20))
    told = replanner.status()
    assert (told.failures, told.trouble) == (2, "")
    assert caplog.text.count("the router starts anew") >= 2
    assert actor.plans[0][0].posts[0].dnn == 2
    shown = prometheus_text(replace(rated(world.router, History()), replanning=told))
    assert "fermata_replanning_failures_total 2" in shown
    assert 'fermata_policy{application="faces",figure="prefetch_hit_ratio"} 1' in shown

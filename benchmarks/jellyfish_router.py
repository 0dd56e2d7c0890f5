"""What the router's own loop spends on a mapping that somebody else decides."""

import pickle
import random
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.figures import Figure
from benchmarks.jellyfish_data import FPS, MBPS, SLO_MS, Data
from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import ClientReport
from fermata.router.policies.family import family_of
from fermata.router.policies.jellyfish.mapping_problem import answer
from fermata.router.policies.jellyfish.options import JellyfishOptions, make_decider
from fermata.router.policies.jellyfish.source import Jellyfish

CLIENTS, WORKERS = 512, 64
REPLAN_NS = SECOND // 2


def busy_router(data: Data) -> tuple[Engine, Jellyfish]:
    """A router with its backends up."""
    costs = Costs()
    for variant, table_ns in enumerate(data.zoo.latency_ns):
        costs.add(variant, list(table_ns), None)
    engine = Engine(costs)
    numbers = tuple(range(len(data.input_sizes)))
    family = family_of(0, "cameras", ms(150), numbers, 0, data.zoo.accuracy, data.input_sizes)
    source = Jellyfish(family, JellyfishOptions(), random.Random(0))
    engine.add_application(source)
    source.plan_elsewhere()
    for backend in range(WORKERS):
        engine.on_backend_up(0, backend, owner=0)
    return engine, source


def report_all(data: Data, engine: Engine, now_ns: int, rng: random.Random) -> None:
    """Every client says how it is; each has sent frames of a few sizes."""
    for client in range(CLIENTS):
        for _ in range(3):
            size = rng.randrange(len(data.input_sizes))
            said = ClientReport(
                client,
                ms(rng.choice(SLO_MS)),
                rng.choice(FPS),
                rng.uniform(*MBPS) * 1e6,
                data.input_sizes[size],
                int(data.frame_bits[size]),
                ms(2),
            )
            engine.on_report(now_ns, 0, said)


def on_the_router(data: Data, quick: bool) -> Iterator[Figure]:
    """Packing the question and unpacking the answer count: both happen between two requests."""
    engine, source = busy_router(data)
    decider = make_decider(source.options, random.Random(0))
    rng = random.Random(0)
    asking: list[float] = []
    taking: list[float] = []
    for round_ in range(3 if quick else 9):
        now_ns = (round_ + 1) * REPLAN_NS
        report_all(data, engine, now_ns, rng)
        started_s = time.process_time()
        question = pickle.dumps(source.question(now_ns), protocol=5)
        asking.append(time.process_time() - started_s)
        plan = pickle.dumps(answer(decider, pickle.loads(question)), protocol=5)
        started_s = time.process_time()
        source.take_plan(now_ns, pickle.loads(plan))
        taking.append(time.process_time() - started_s)
        engine.take_effects()
    name = f"{CLIENTS} clients, CPU of the router to"
    yield Figure(f"{name} ask", median(asking) * 1e3, "ms", 5, True)
    yield Figure(f"{name} take a plan", median(taking) * 1e3, "ms", 5, True)

"""Runs a load in several processes, since one of them sends a few thousand requests a second."""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from fermata.clients.load.arrivals import SendTimes
from fermata.clients.load.connection import LoadError
from fermata.clients.load.ledger import LoadLedger, merge
from fermata.clients.load.sender import Sender, SenderOptions, Target

START_NS = 300_000_000
"""From when all processes are ready to the first request."""
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class SenderReady:
    """A sender process has connected, and waits for the time to start."""


@dataclass(frozen=True, slots=True)
class SenderFailed:
    """A sender process has ended without a ledger."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopSending:
    """A sender process sends no more, and tells what became of what has left."""


class LoadStopped(KeyboardInterrupt):
    """The user stopped a load, whose ledger says what it came to."""

    def __init__(self, ledger: LoadLedger) -> None:
        super().__init__()
        self.ledger = ledger


def run_load(
    options: SenderOptions,
    targets: list[Target],
    arrivals: SendTimes,
    processes: int = 1,
    kind: type[Sender] = Sender,
) -> LoadLedger:
    """Send all arrivals and return what became of each; `kind` of sender says how they travel.
    Ctrl-C raises LoadStopped once what had left is answered.

    In processes of their own, be it one: the caller's threads would take the senders' time, and
    grpc.aio does not outlive the loop it was first used on.
    """
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    workers = []
    processes = max(1, processes)
    # Where it starts with the first of them, it lets Ctrl-C through again.
    resource_tracker.ensure_running()
    for index in range(processes):
        ours, theirs = context.Pipe()
        arguments = (theirs, kind, options, targets, arrivals.part(index, processes))
        worker = context.Process(target=_work, args=arguments, daemon=True)
        with _deaf():
            worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    try:
        for pipe in pipes:
            if not pipe.poll(READY_S):
                raise LoadError(f"a sender is not ready after {READY_S:g} s: use fewer processes")
            if isinstance(answer := pipe.recv(), SenderFailed):
                raise LoadError(answer.reason)
        # One machine has one monotonic clock, so one time suits all.
        start_at_ns = time.monotonic_ns() + START_NS
        for pipe in pipes:
            pipe.send(start_at_ns)
        try:
            for pipe in pipes:
                pipe.poll(None)
        except KeyboardInterrupt:
            for pipe in pipes:
                with suppress(OSError):
                    pipe.send(StopSending())
        found = [pipe.recv() for pipe in pipes]
        for worker in workers:
            worker.join(5)
    except EOFError:
        raise LoadError("a sender died: see above for why") from None
    finally:
        for worker in workers:
            worker.terminate()
    for each in found:
        if isinstance(each, SenderFailed):
            raise LoadError(each.reason)
    ledger = merge(found)
    if ledger.stopped_ns is not None:
        raise LoadStopped(ledger)
    return ledger


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that starts meanwhile never hears of Ctrl-C. A terminal tells every process of it;
    the one that asked for the load decides what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    pipe: Connection,
    kind: type[Sender],
    options: SenderOptions,
    targets: list[Target],
    part: SendTimes,
) -> None:
    def wait() -> int:
        pipe.send(SenderReady())
        start_at_ns: int = pipe.recv()
        return start_at_ns

    try:
        found: LoadLedger | SenderFailed = asyncio.run(
            _send(kind(options, targets, part), wait, pipe.fileno())
        )
    except (LoadError, OSError) as error:
        found = SenderFailed(str(error))
    except EOFError:
        return
    with suppress(BrokenPipeError):
        pipe.send(found)


async def _send(sender: Sender, wait: Callable[[], int], told: int) -> LoadLedger:
    """Connect, wait for the start and send until the end, or until `told` says or closes."""
    await sender.connect()
    start_at_ns = wait()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(told)
        sender.stop()

    loop.add_reader(told, stop)
    try:
        return await sender.run(start_at_ns)
    finally:
        loop.remove_reader(told)

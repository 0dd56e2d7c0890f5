"""Kills real processes of a running server under load; the client's ledger is the judge."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure
from benchmarks.live_server import ROOT, Running, fermata, title_of
from fermata.clients.load.connection import CUT

SLO_MS = 400.0
GRACE_MS = 50.0
"""After a request has expired: by then it has an answer."""
RATE_RPS = 170.0
"""Three backends of 20 + 10 b ms manage some 210 within the SLO."""
BACKENDS = 3
BATCH_MAX = 16
STREAMS = 8
"""Connections of the generator; requests take them in turn, or by their clients."""
CAMERAS = ("--arrivals", "cameras", "--fps", "10")
"""In place of nameless requests at random: shares are by client."""
LOAD_S = 9.0
KILL_AFTER_S = 2.0
"""From the first request on."""
STOP_S = 2.0
"""For which a process is stopped rather than killed."""
BEGIN_S, BACK_S = 90.0, 60.0
"""How long the load may take to begin, and a server to be whole again."""
APPLICATION = {
    "name": "emulated",
    "slo_ms": SLO_MS,
    "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
    "variants": [
        {
            "name": "emulated-1",
            "model": "emulated",
            "alpha_ms": 10,
            "beta_ms": 20,
            "batch_size_max": BATCH_MAX,
        }
    ],
}
CONFIG: Mapping[str, Any] = {
    "applications": [APPLICATION],
    "backend": {"count": BACKENDS, "device": "emulated", "cpus": 0.1},
}
PROCESSES = {
    "backend": ":Backend",
    "frontend": ":Frontend",
    "router": "RouterActor",
    "control plane": ":ControlPlane",
    "Serve controller": "ServeController",
    "GCS": "gcs_server",
}
"""What names of processes hold."""
LEADS, WAITS = "router with standby", "router that waits"
BOTH = (signal.SIGKILL, signal.SIGSTOP)
FRONTENDS = {"frontend": 2}
"""How many there are while it is killed: streams of the others must not notice."""
FATAL = {("GCS", signal.SIGKILL)}
"""What a cluster on one machine does not survive for long: each time there is a new one."""
GAPS_S = {LEADS: 0.1}
"""From the first bad request to the last, at most; 2.5 unless said."""
WORST: Mapping[tuple[str, signal.Signals], int] = {
    ("backend", signal.SIGKILL): BATCH_MAX,
    **{
        (role, sign): 0
        for role in (WAITS, "control plane", "Serve controller", "GCS")
        for sign in BOTH
    },
}
"""Bad requests that one fault may cost, where that is known: of a dead backend, its batch; of what
no request passes, none."""
MUTE = {("frontend", signal.SIGSTOP)}
"""Who is stopped cannot answer in time."""
Ledger = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answers and gaps that clients saw at one fault."""

    lost: int
    """Sent on a connection that lived on, and never answered."""
    cut: int
    """Whose connection ended; only where a frontend dies."""
    late_answers: int
    """Answered later than promised."""
    twice: int
    """Answers to what had been answered, or was never asked."""
    bad: int
    """In the whole run: refused, late, unsent."""
    gap_s: float
    """From the first bad request to the last."""
    strays: int
    """Bad, though on a stream that was neither cut nor left without answers for long."""
    refused: dict[str, int]


def pids(server: Running, role: str) -> list[int]:
    mark = PROCESSES[role]
    return sorted(pid for pid in server.family() if mark in title_of(pid))


def victim_of(server: Running, role: str) -> int:
    """Of two routers, the one that leads or the one that waits; of others, the youngest."""
    if role not in (LEADS, WAITS):
        return pids(server, role)[-1]
    leads = int(server.status()["pid"])
    if role == LEADS:
        return leads
    (waits,) = (pid for pid in pids(server, "router") if pid != leads)
    return waits


@contextmanager
def loaded(
    server: Running,
    duration_s: float,
    arrivals: Sequence[str] = (),
    rate_rps: float = RATE_RPS,
    model: str = "emulated",
    first: str = "",
) -> Iterator[list[tuple[Ledger, int]]]:
    """Send a load, from its first request on; in the end the list holds the client's ledger and
    how many answers were none that it waited for. `first` is the application of a pipeline that
    requests come to first."""
    found: list[tuple[Ledger, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "ledger.npz"
        command = [sys.executable, "-m", "fermata.commands.main", "load", "--model", model]
        command += ["--server", server.address, "--rate", str(rate_rps), "--warmup-s", "0"]
        command += ["--duration-s", str(duration_s), "--streams", str(STREAMS)]
        command += ["--ledger", str(kept), "--json", *arrivals]
        before = _received(server, first or model)
        loading = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        end_s = time.monotonic() + BEGIN_S
        while _received(server, first or model) == before:
            assert time.monotonic() < end_s, f"no request came within {BEGIN_S:g} s"
            time.sleep(0.05)
        yield found
        said, _ = loading.communicate(timeout=duration_s + 60)
        assert loading.returncode == 0, said
        told = json.loads(said)
        with np.load(kept) as ledger:
            columns = {name: ledger[name] for name in ledger.files}
        found.append((columns, told["duplicates"] + told["strangers"]))


def _received(server: Running, model: str) -> int:
    return int(server.status()["applications"][model]["requests"])


def strike(server: Running, role: str, sign: signal.Signals) -> Verdict:
    """One fault in the middle of a load."""
    with loaded(server, LOAD_S, CAMERAS if role in FRONTENDS else ()) as found:
        time.sleep(KILL_AFTER_S)
        victim = victim_of(server, role)
        os.kill(victim, sign)
        if sign == signal.SIGSTOP:
            time.sleep(STOP_S)
            os.kill(victim, signal.SIGCONT)
    return judge(*found[0])


def is_good(ledger: Ledger, slo_ms: float = SLO_MS) -> npt.NDArray[np.bool_]:
    took_ns = ledger["answered_ns"] - ledger["scheduled_ns"]
    good: npt.NDArray[np.bool_] = (ledger["outcome"] == "OK") & (took_ns <= slo_ms * 1e6)
    return good


def unanswered(ledger: Ledger) -> int:
    return int(np.isin(ledger["outcome"], ("LOST", "OPEN")).sum())


def judge(ledger: Ledger, twice: int) -> Verdict:
    outcome, due = ledger["outcome"], ledger["scheduled_ns"]
    bad = ~is_good(ledger)
    late = ledger["answered_ns"] - due > (SLO_MS + GRACE_MS) * 1e6
    client = ledger["client"]
    stream = np.where(client > 0, client, np.arange(len(bad))) % STREAMS
    hit = np.unique(stream[late | (outcome == CUT)])
    names, counts = np.unique(outcome[bad], return_counts=True)
    return Verdict(
        lost=unanswered(ledger),
        cut=int((outcome == CUT).sum()),
        late_answers=int(late.sum()),
        twice=twice,
        bad=int(bad.sum()),
        gap_s=float(due[bad].max() - due[bad].min()) / 1e9 if bad.any() else 0.0,
        strays=int((bad & ~np.isin(stream, hit)).sum()),
        refused={str(name): int(count) for name, count in zip(names, counts, strict=True)},
    )


def recovered(server: Running, standby: bool = False, frontends: int = 1) -> None:
    """Wait until the server is whole again."""
    end_s = time.monotonic() + BACK_S
    while time.monotonic() < end_s:
        try:
            status = server.status()
            here = len(status["backends"]), len(status["frontends"]), status["standby"]
            if here == (BACKENDS, frontends, standby):
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server is not whole {BACK_S:g} s after a fault")


def strikes(role: str, sign: signal.Signals, times: int) -> Iterator[Verdict]:
    """One fault after the other, each on a server that is whole."""
    standby, frontends = role in (LEADS, WAITS), FRONTENDS.get(role, 1)
    each = 1 if (role, sign) in FATAL else times
    for _ in range(times // each):
        with fermata(
            **CONFIG, router={"standby": standby}, frontend={"processes": frontends}
        ) as server:
            for _ in range(each):
                recovered(server, standby, frontends)
                yield strike(server, role, sign)


def measure(role: str, times: int, signs: Sequence[signal.Signals] = BOTH) -> Iterator[Figure]:
    """Each signal so often; says how each went."""
    for sign in signs:
        found: list[Verdict] = []
        for verdict in strikes(role, sign, times):
            found.append(verdict)
            print(f"{role}, {sign.name}, {len(found)}: {verdict}", file=sys.stderr)
        yield from summed(role, sign, found)


def summed(role: str, sign: signal.Signals, found: Sequence[Verdict]) -> Iterator[Figure]:
    which = role, sign
    worst, gap_s = max(each.bad for each in found), max(each.gap_s for each in found)
    rows = {
        "requests without an answer": (sum(each.lost for each in found), 0),
        "answered twice": (sum(each.twice for each in found), 0),
        "answered too late": (
            sum(each.late_answers for each in found),
            math.inf if which in MUTE else 0,
        ),
        "connections cut under requests": (
            sum(each.cut for each in found),
            math.inf if role in FRONTENDS else 0,
        ),
        "bad": (sum(each.bad for each in found), math.inf),
        "bad by one, at most": (worst, WORST.get(which, math.inf)),
        "from first bad to last in s, at most": (gap_s, GAPS_S.get(role, 2.5)),
    }
    if role in FRONTENDS:
        rows["bad on streams of others"] = sum(each.strays for each in found), 0
    for what, (value, goal) in rows.items():
        name = f"{role}, {sign.name}, {len(found)} times: {what}"
        yield Figure(name, value, "", goal, at_most=True)

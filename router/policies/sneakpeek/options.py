"""The knobs of window scheduling; the paper's five schedulers are settings of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fermata.router.policies.application import ApplicationSpec

USUAL_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class SneakPeekOptions:
    """Defaults are the best known; the presets below are what the paper compares with."""

    window_ns: int = 0
    """Requests of a window are scheduled together at its end; 0: 100 ms, or less where that leaves
    no time to run."""
    order: str = "grouped"
    """`grouped`: groups of an application's requests. `edf`, `priority`: request by request, by
    deadline or by Eq. 12."""
    choice: str = "utility"
    """Request by request: `utility` takes the variant of the highest utility (Eq. 13), `accuracy`
    the most accurate one, come what may."""
    penalty: str = "sigmoid"
    """The cost of lateness: `step`, `linear`, `sigmoid` or `module:function`."""
    evidence: bool = True
    """Use what is known of each request's content; profiled accuracy where that is not there."""
    split: bool = True
    """Split groups by likely class, with one worker and up to `tau` applications."""
    short_circuit: bool = True
    """Answer at once by the SneakPeek model where that is worth most."""
    group_size_max: int = 0
    """Cut larger groups; 0: as many jobs as leave every worker a part."""
    run_worthless: bool = False
    """Run also what is worth nothing any more, as the paper's constraint 5 has it."""
    tau: int = 5
    """Up to so many groups on one worker are searched, exactly within `nodes_max`; more subgroups
    are merged back."""
    nodes_max: int = 120
    """Nodes of one exact search of 24 jobs, fewer with more: bounds its time."""
    budget: int = 600
    """Jobs evaluated by one local improvement; 0: none. Bounds its time."""


SNEAKPEEK = SneakPeekOptions()
GROUPED = SneakPeekOptions(evidence=False, split=False, short_circuit=False)
LO_EDF = SneakPeekOptions(
    order="edf", evidence=False, split=False, short_circuit=False, run_worthless=True
)
LO_PRIORITY = replace(LO_EDF, order="priority")
MAXACC_EDF = replace(LO_EDF, choice="accuracy")


def room_ns(application: ApplicationSpec) -> int:
    """The longest window after which a request that arrived as it began still ends in time."""
    runs_ns = [(each.p99_ns or each.p50_ns or (0,))[0] for each in application.variants]
    return application.slo_ns - (application.reply_ns or 0) - min(runs_ns)


def usual_window_ns(applications: Iterable[ApplicationSpec]) -> int:
    """The window where none is set: half of what the tightest application leaves, where the usual
    one would be too long."""
    least_ns = min((room_ns(each) for each in applications if each.slo_ns), default=USUAL_NS)
    return USUAL_NS if least_ns >= USUAL_NS else max(1, least_ns // 2)

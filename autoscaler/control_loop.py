"""The slow loop: windows for the number of backends, epochs for the homes of models.

Pure: readings of the router and plans of a solver come in with a time; targets, problems and
plans go out as effects. The control plane, the simulator and the fault simulation drive it, so
that the decisions which are simulated are those that serve.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.autoscaler.placer import PlacementEffect, Placer
from fermata.autoscaler.readings import ClusterReading
from fermata.autoscaler.router_count import RouterCount
from fermata.autoscaler.rule import ScalingAdvice
from fermata.autoscaler.scaler import Scaler
from fermata.autoscaler.sub_cluster_limits import spread
from fermata.autoscaler.window import Window
from fermata.foundation.units import NEVER
from fermata.partitioner.plan import PlacedModel, Plan

NO_TERM = -1
"""In place of a term: no router is known to have targets and plan."""


@dataclass(frozen=True, slots=True)
class SetTargets:
    """Have so many backends in each sub-cluster."""

    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowEnded:
    """A window has ended: what was seen, advised and wanted, by sub-cluster."""

    windows: tuple[Window, ...]
    advice: tuple[ScalingAdvice, ...]
    before: tuple[int, ...]
    """The targets until then."""
    targets: tuple[int, ...]


ControlEffect = PlacementEffect | SetTargets | WindowEnded


class ControlLoop:
    """Decides at windows and epochs. A driver takes readings and carries the effects out."""

    def __init__(
        self,
        autoscaler: AutoscalerOptions | None,
        epochs: EpochOptions | None,
        models: Sequence[PlacedModel],
        sub_clusters: int = 1,
        counting: RouterCount | None = None,
    ) -> None:
        """`models` are the applications as placement sees them, all at one rate. Without epochs
        there are so many `sub_clusters`; with them, `counting` may open and close some."""
        self.autoscaler = autoscaler
        self.models = tuple(models)
        self.placer = None if epochs is None else Placer(epochs, models, counting)
        self.counting = counting
        self.scaler: Scaler | None = None
        self.sub_clusters = sub_clusters if epochs is None else epochs.sub_clusters
        self.window_ends_at_ns = NEVER
        self.epoch_ends_at_ns = NEVER
        self.informed_term = NO_TERM
        """Term of the router that has targets and plan."""
        self.effects: list[ControlEffect] = []

    def set_models(self, models: Sequence[PlacedModel]) -> None:
        """Take the applications as their policies of now choose among variants."""
        self.models = tuple(models)
        if self.scaler is not None:
            self.scaler.set_models(models)

    @property
    def targets(self) -> tuple[int, ...]:
        return () if self.scaler is None else self.scaler.targets

    @property
    def is_placing(self) -> bool:
        """Whether a plan is being solved or applied."""
        return self.placer is not None and self.placer.is_busy

    @property
    def is_applying(self) -> bool:
        """Whether a plan is being applied, or a sub-cluster opened: a reading shows when it
        holds."""
        opening = self.counting is not None and bool(self.counting.opening)
        return opening or (self.placer is not None and self.placer.going is not None)

    def wake_at_ns(self) -> int:
        """The time at which the next reading is due."""
        return min(self.window_ends_at_ns, self.epoch_ends_at_ns)

    def take_effects(self) -> list[ControlEffect]:
        effects, self.effects = self.effects, []
        return effects

    # Events

    def on_start(
        self, now_ns: int, reading: ClusterReading, backends: int, kept: Plan | None = None
    ) -> None:
        """Go on where the last control plane has stopped.

        `backends` is the number there is; `kept` is the plan of an earlier run, where there is one.
        """
        self.informed_term = reading.term
        if self.autoscaler is not None:
            # Not the number in the configuration: to ask for that would end backends in use.
            targets = reading.targets or spread(backends, self.sub_clusters)
            # Several routers count for themselves, and another loop moves what they serve.
            own_counts = self.placer is None
            self.scaler = Scaler(self.autoscaler, targets, reading, self.models, own_counts)
            self.window_ends_at_ns = now_ns + self.autoscaler.window_ns
        if self.placer is not None:
            self.effects += self.placer.start(reading, kept)
            self.epoch_ends_at_ns = now_ns + self.placer.options.every_ns

    def on_reading(self, now_ns: int, reading: ClusterReading) -> None:
        """Take note of a reading, and end the windows and epochs that are due."""
        if self.scaler is not None:
            self.scaler.on_reading(reading)
        if reading.term != self.informed_term:
            self._inform(now_ns, reading)
        elif self.placer is not None:
            self.effects += self.placer.on_reading(now_ns, reading)
        if now_ns >= self.window_ends_at_ns:
            self._end_window(now_ns, reading)
        if now_ns >= self.epoch_ends_at_ns:
            self._end_epoch(now_ns, reading)
        if self.counting is not None:
            targets = self.counting.targets(reading)
            if targets != reading.targets:
                self.effects.append(SetTargets(targets))

    def on_no_answer(self, now_ns: int) -> None:
        """A reading, or an effect, was lost: the next reading has to show what is missing."""
        self.informed_term = NO_TERM
        if self.autoscaler is not None and now_ns >= self.window_ends_at_ns:
            self.window_ends_at_ns = now_ns + self.autoscaler.window_ns
        if self.placer is not None and now_ns >= self.epoch_ends_at_ns:
            self.epoch_ends_at_ns = now_ns + self.placer.options.every_ns

    def on_solved(self, plan: Plan) -> None:
        """The solver has found the plan that was asked for."""
        assert self.placer is not None
        self.effects += self.placer.on_solved(plan)

    def on_unsolved(self) -> None:
        """The solver has found no plan."""
        assert self.placer is not None
        self.effects += self.placer.on_unsolved()

    # Decisions

    def _inform(self, now_ns: int, reading: ClusterReading) -> None:
        """Give targets and plan to a router that has just come to lead, and has neither."""
        self.informed_term = reading.term
        scaler = self.scaler
        if scaler is not None and not scaler.options.dry_run and not reading.targets:
            self.effects.append(SetTargets(scaler.targets))
        if self.placer is not None:
            self.effects += self.placer.on_new_leader(now_ns, reading)

    def _end_window(self, now_ns: int, reading: ClusterReading) -> None:
        scaler = self.scaler
        assert scaler is not None
        before = scaler.targets
        windows, advice = scaler.on_window(reading)
        self.window_ends_at_ns = now_ns + scaler.options.window_ns
        if not scaler.options.dry_run:
            # Also where nothing changes: it lets the router even out its sub-clusters.
            self.effects.append(SetTargets(scaler.targets))
        self.effects.append(WindowEnded(windows, advice, before, scaler.targets))

    def _end_epoch(self, now_ns: int, reading: ClusterReading) -> None:
        placer = self.placer
        assert placer is not None
        self.epoch_ends_at_ns = now_ns + placer.options.every_ns
        # A plan that is still on its way is finished first.
        if not placer.is_busy:
            self.effects += placer.on_epoch(reading)

"""Pipelines as frontends run them: stages, and how the inputs of each are made."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fermata.router.core.queries.pipeline import Pipeline

if TYPE_CHECKING:
    from fermata.deployments.specs.served_model import ServedModel

PICTURE_KINDS = ("crop", "turn")
"""Transforms that read the pixels of what the stage before was given."""
ANSWER = "answer"
"""The output of a pipeline: one JSON document."""


@dataclass(frozen=True, slots=True)
class CropChoice:
    """Boxes of a detector that are cut out, one input of the next stage each."""

    classes: tuple[str, ...] = ()
    """Names or numbers; empty: all."""
    score_min: float = 0.0
    top_k: int = 0
    """Those of the highest scores; 0: all."""
    scores: str = "scores"
    """Output with a score for each box; where there is none, the fifth number of a box."""
    numbers: str = "classes"
    """Output with the class of each box; where there is none, the sixth number of a box."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Rows of an output, one input of the next stage each."""

    output: str = ""
    """Empty: the only one."""
    scores: str = ""
    """Output with a score for each row; empty: rows have none."""
    score_min: float = 0.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class TurnChoice:
    """The picture of the stage before, turned upright by the degrees of its best class."""

    score_min: float = 0.9
    scores: str = ""
    """Output with a score for each class; empty: the first."""


@dataclass(frozen=True, slots=True)
class StageTransform:
    """How the inputs of a stage are made of a result of the stage before."""

    kind: str = "output"
    """`output`, `input`, `crop`, `filter`, `turn` or `function`."""
    crop: CropChoice = CropChoice()
    rows: RowChoice = RowChoice()
    turn: TurnChoice = TurnChoice()
    function: str = ""
    """`module:function`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Asks what an earlier stage has found, and lets a stage run where that is enough."""

    stage: int = -1
    """Place of the stage that is asked; -1: the one whose result comes."""
    classes: tuple[str, ...] = ()
    """Names or numbers that count; empty: all."""
    score_min: float = -math.inf
    score_below: float = math.inf
    found_min: int = 1
    found_max: float = math.inf
    scores: str = ""
    """Output with the scores; empty: as the kind of model has it."""
    numbers: str = "classes"
    """Output with the class of each box."""


@dataclass(frozen=True, slots=True)
class ServedStage:
    """One stage of a pipeline."""

    name: str
    model: "ServedModel"
    version: str
    transform: StageTransform
    classes: int = 0
    """The answer names so many best classes of the first output in its place; 0: as it is."""
    when: Condition | None = None
    """Results that it runs for; None: all."""

    @property
    def application(self) -> str:
        """The router's name of the application that runs it."""
        return self.model.application(self.version)


@dataclass(frozen=True, slots=True)
class ServedPipeline:
    """A pipeline as clients see it."""

    name: str
    graph: Pipeline
    stages: tuple[ServedStage, ...]
    """In the order of the graph's."""
    function: str = ""
    """`module:function` that calls the stages; empty: they follow one another by the graph."""

    @property
    def cuts_pictures(self) -> bool:
        """Whether the client's own picture is cut or turned for some stage."""
        if self.function:
            return False
        after = self.graph.stages[0].children
        return any(self.stages[each].transform.kind in PICTURE_KINDS for each in after)

    @property
    def has_conditions(self) -> bool:
        """Whether some stage does not run for all results."""
        return any(each.when is not None for each in self.stages)

"""Answers of looks in the form of the model's own: its output's name, type, shape and meaning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fermata.clients.wire.tensors import DTYPES
from fermata.deployments.specs.served_model import OUTPUT
from fermata.router.links.messages import Result, ShortCircuit

Tensor = tuple[str, str, tuple[int, ...], bytes]
"""As in `Result`: name, data type, shape, contents."""
SNEAKPEEK = "sneakpeek"
"""Variant named in answers from evidence alone."""
SUM_OFF = 1e-2
"""By how much probabilities may miss a sum of 1: they may have 16 bits."""
SCORES = frozenset(("FP16", "FP32", "FP64"))
LEAST = 1e-12
"""Least probability that a logit is made of."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The output of a model that names classes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    meaning: str
    """`probabilities`, `logits` or `label`, the number of the best class."""
    alone: bool = True
    """The model has no other output."""

    def tensor(self, label: int, classes: Sequence[float]) -> Tensor:
        """The answer of the model itself for these probabilities."""
        scores = np.asarray(classes, np.float64)
        if self.meaning == "logits":
            scores = np.log(np.maximum(scores, LEAST))
        elif self.meaning == "label":
            scores = np.array([label])
        data = scores.astype(DTYPES[self.datatype]).tobytes()
        return self.name, self.datatype, self.shape, data


class LookAnswers:
    """Forms of answers by application, learnt from what backends answer."""

    def __init__(self, classes: Mapping[str, int] | None = None) -> None:
        self.classes = classes or {}
        """Number of classes, by application whose requests are looked at."""
        self.forms: dict[str, AnswerForm | None] = {}
        """None: none of the outputs names classes."""

    def learn(self, application: str, tensors: Sequence[Tensor]) -> None:
        """A backend answered a request that had been looked at."""
        known = self.forms.get(application)
        kept = known is not None and any(
            (known.name, known.datatype, known.shape) == tensor[:3] for tensor in tensors
        )
        if not kept and tensors:
            self.forms[application] = form_of(tensors, self.classes.get(application, 0))

    def takes(self, application: str, wanted: Sequence[str]) -> bool:
        """Whether a look can give all outputs that a client asks for; none: all that there are."""
        if application not in self.forms:
            return not wanted or list(wanted) == [OUTPUT]
        form = self.forms[application]
        if form is None:
            return False
        return set(wanted) <= {form.name} if wanted else form.alone

    def result(self, application: str, answer: ShortCircuit) -> Result:
        """What a client gets that is answered by a look alone."""
        tensor = self.tensor(application, answer.label, answer.classes)
        return Result(
            answer.rid,
            SNEAKPEEK,
            batch_size=1,
            queue_ns=0,
            run_ns=0,
            tensors=(tensor,),
            estimate=answer.estimate,
            short_circuit=True,
        )

    def tensor(self, application: str, label: int, classes: Sequence[float]) -> Tensor:
        """The answer. Before any backend has answered, it is probabilities by the usual name."""
        form = self.forms.get(application) or AnswerForm(
            OUTPUT, "FP32", (len(classes),), "probabilities"
        )
        return form.tensor(label, classes)


def form_of(tensors: Sequence[Tensor], classes: int) -> AnswerForm | None:
    """The first output with a score for each class or, where there is none, with one number."""
    alone = len(tensors) == 1
    for name, datatype, shape, data in tensors:
        if datatype in SCORES and int(np.prod(shape)) == classes:
            scores = np.frombuffer(data, DTYPES[datatype]).astype(np.float64)
            sums = abs(float(scores.sum()) - 1.0) <= SUM_OFF
            meaning = "probabilities" if sums and scores.min() >= 0 else "logits"
            return AnswerForm(name, datatype, tuple(shape), meaning, alone)
    for name, datatype, shape, _ in tensors:
        if datatype.lstrip("U").startswith("INT") and int(np.prod(shape)) == 1:
            return AnswerForm(name, datatype, tuple(shape), "label", alone)
    return None

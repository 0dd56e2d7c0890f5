"""Looks at the inputs of waiting requests: on this frontend's threads, or on backends."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from numpy.typing import NDArray

from fermata.deployments.frontend.requests.looks.backend_looks import BackendLooks, SendLook
from fermata.deployments.sneakpeek.look_queue import LookLimits, LookQueue, Votes, WaitingLook
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.foundation.units import NEVER
from fermata.router.links.messages import Evidence, Looked


class Peeker:
    """Has each input looked at, and tells the router what was seen.

    A request without votes in time is scheduled by profiled accuracy.
    """

    def __init__(
        self,
        models: Mapping[str, SneakPeekModel],
        pool: Executor,
        send: Callable[[Evidence], None],
        limits: LookLimits | None = None,
        send_look: SendLook | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`send_look` asks a backend for a look, where models are to be used there."""
        self.models = models
        """SneakPeek models by application."""
        self.send = send
        self.queue = LookQueue(self._look, pool, self._on_votes, limits)
        self.backends = BackendLooks(send_look, self.queue.limits, clock)
        self.peeked = 0
        self.skipped = 0
        self.mine = [each for each in models.values() if not each.on_backends]
        """Those that look here."""
        if any(model.is_embedded for model in self.mine):
            # Weights take seconds to read, and the first look as long as ten others.
            self.queue.prepare(self._warm_up)

    @property
    def cpu_ns(self) -> int:
        """CPU time of all looks that were taken here."""
        return self.queue.cpu_ns

    def class_counts(self) -> dict[str, int]:
        """Number of classes by application."""
        return {name: model.index.classes for name, model in self.models.items()}

    def take(
        self,
        rid: int,
        application: str,
        sample: NDArray[Any] | None,
        answers: bool = True,
        within_ns: int = NEVER,
    ) -> None:
        """Have an input looked at, of which there is no `sample` while it is encoded. `answers`:
        the client takes a look's answer for its own. `within_ns`: a vote is of no use later."""
        model = self.models.get(application)
        if model is None or (sample is None and not model.on_backends):
            return
        if sample is not None and not model.sees(sample.shape):
            self.skipped += 1
        elif model.on_backends:
            self.skipped += not self.backends.ask(rid, application, answers, within_ns)
        elif sample is None or not self.queue.has_room(application, within_ns):
            self.skipped += 1
        else:
            # A copy, since its memory is released early.
            self.queue.add(WaitingLook(rid, application, sample.copy(), answers))

    def _warm_up(self) -> None:
        """Read the weights of embeddings, in a thread."""
        for model in self.mine:
            model.warm_up()

    def _look(self, application: str, samples: Sequence[NDArray[Any]]) -> list[Votes]:
        """Votes on each sample; runs in a thread."""
        return [tuple(row) for row in self.models[application].look(samples).tolist()]

    def _on_votes(self, look: WaitingLook, votes: Votes) -> None:
        if votes:
            self.peeked += 1
            self.send(Evidence(look.rid, votes=votes, answers=bool(look.asker)))

    def on_looked(self, backend: int, looked: Looked) -> None:
        """A backend has looked at an input, or could not."""
        asked = self.backends.on_looked(backend, looked)
        if asked is not None and looked.votes:
            self.peeked += 1
            self.send(Evidence(looked.rid, votes=looked.votes, answers=asked.answers))
        elif asked is not None:
            self.skipped += 1

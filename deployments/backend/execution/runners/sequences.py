"""The runner of a model that keeps the state of sequences itself."""

from collections import deque
from collections.abc import Mapping

from fermata.deployments.backend.execution.runners.named import NamedModel, NamedRunner
from fermata.deployments.backend.execution.tensors import Array, InputError, Item, Outputs
from fermata.deployments.specs.served_model import (
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_START,
    TensorSpec,
)


class SequenceRunner(NamedRunner):
    """Runs a model that is told which sequence each row belongs to.

    A row of a sequence that the model does not have is refused, whatever the router thinks. The
    model may have a method `end_sequences`; it gets the ids of those that ended without a last row.
    """

    keeps_state = True
    """A batch that failed may have changed the state, and is not run again."""

    def __init__(
        self, model: NamedModel, batch_size_max: int, inputs: tuple[TensorSpec, ...]
    ) -> None:
        super().__init__(model, batch_size_max, inputs)
        names = {each.name for each in inputs}
        self.tells_all = {SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END} <= names
        self.open: set[int] = set()
        """Ids of sequences that have a state here, as of the last row that was checked."""
        self.ended: deque[int] = deque()
        """Ids of which the model has to hear before its next batch; a thread takes them."""

    def check(self, item: Item) -> None:
        super().check(item)
        if not self.tells_all:
            return
        arrays = self._arrays(item)
        key = int(arrays[SEQUENCE_ID].flat[0])
        if not arrays[SEQUENCE_START].flat[0] and key not in self.open:
            raise InputError("its sequence has no state on this backend; start it anew")
        if arrays[SEQUENCE_END].flat[0]:
            self.open.discard(key)
        else:
            self.open.add(key)

    def run(self, staged: Mapping[str, Array]) -> Outputs:
        if self.ended:
            self._tell_ended(staged)
        try:
            return super().run(staged)
        except Exception as error:
            if getattr(error, "state_lost", False):
                # Whoever is asked next has none of them.
                self.open.clear()
                self.ended.clear()
                raise
            # Nobody knows what became of their state.
            for key in staged[SEQUENCE_ID].flat if SEQUENCE_ID in staged else ():
                self.end(int(key))
            raise

    def _tell_ended(self, staged: Mapping[str, Array]) -> None:
        """Tell the model of ended sequences, but not of those in its next batch: a start makes a
        new state, and any other row was ordered before the end, and still needs the old one."""
        ended: list[int] = []
        while self.ended:
            ended.append(self.ended.popleft())
        if self.tells_all:
            keys, starts = staged[SEQUENCE_ID].ravel(), staged[SEQUENCE_START].ravel()
            here = dict(zip(keys.tolist(), starts.tolist(), strict=True))
            self.ended.extend(key for key in ended if not here.get(key, True))
            ended = [key for key in ended if key not in here]
        end = getattr(self.model, "end_sequences", None)
        if ended and end is not None:
            end(ended)

    def end(self, key: int) -> None:
        """Forget a sequence; its model hears of it before its next batch."""
        self.open.discard(key)
        self.ended.append(key)

    def end_all(self) -> None:
        """Forget every sequence: the router that knew them is gone."""
        for key in list(self.open):
            self.end(key)

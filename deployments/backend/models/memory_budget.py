"""Memory of an accelerator, as the models that are loaded there share it."""

from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.foundation.errors import ConfigError


class MemoryBudget:
    """Memory that the models of one accelerator may take together."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self.held: dict[str, int] = {}
        self.networks: dict[str, int] = {}
        """Identity of the network that a model shares with its other sizes."""
        self.frames = KeptFrames()
        """Pictures that models decode there, for others to cut."""

    def take(self, name: str, size: int, network: int = 0) -> None:
        """Allocate memory for a model; ConfigError if too little is left.

        Models with the same `network` share it: its memory counts once.
        """
        others = self.total()
        if network in self.networks.values():
            size = 0
        if self.bytes_max is not None and others + size > self.bytes_max:
            raise ConfigError(
                f"{name} takes {size >> 20} MB beside {others >> 20} MB held by "
                f"{', '.join(sorted(self.held)) or 'nothing'}; memory_mb is "
                f"{self.bytes_max >> 20}: raise it or serve fewer models here"
            )
        self.held[name] = size
        if network:
            self.networks[name] = network

    def total(self) -> int:
        """Memory that all models hold."""
        return sum(self.held.values())

    def release(self, name: str) -> None:
        size, network = self.held.pop(name, 0), self.networks.pop(name, 0)
        heir = next((each for each, other in self.networks.items() if other == network), "")
        if network and heir:
            # Another size of the model keeps the weights.
            self.held[heir] = max(self.held.get(heir, 0), size)

"""Faults that are under way, and the processes that they have touched."""

from fermata.fault_simulator.processes import Machine


class Harm:
    """Faults of models, inputs and accelerators; machines that come later have them too."""

    def __init__(self) -> None:
        self.poison = ""
        """A variant that kills whatever process runs it."""
        self.bad_variant = ""
        """One that fails wherever it runs."""
        self.bad_inputs = 0
        """Requests whose number this divides fail wherever they run; 0: none."""
        self.divisors: set[int] = set()
        """All that this has been: a request may be told of its failure long after it."""
        self.hanging: set[int] = set()
        """Requests that hang whatever backend runs them."""
        self.machines: list[Machine] = []
        """Accelerators of all backends that there ever were."""
        self.failed: set[int] = set()
        """Backends that have failed through a fault of their own: they may be ejected."""
        self.excused: set[int] = set()
        """Backends to which something has happened: they may be taken for hung."""

    def is_bad(self, number: int) -> bool:
        """Whether a request of this number has met a time in which all of its runs fail."""
        return any(not number % each for each in self.divisors)

    def add(self, machine: Machine) -> None:
        """Let a new accelerator meet the faults that are under way."""
        machine.poison = self.poison
        machine.bad_variant = self.bad_variant
        machine.bad_inputs = self.bad_inputs
        machine.hanging = self.hanging
        self.machines.append(machine)

"""The garbage collector of a process that answers within deadlines."""

import gc


def settle_garbage() -> None:
    """Take what is here out of the collector's sight: it stays until the process ends.

    A full collection of the modules that a backend or a frontend has imported holds every thread up
    for longer than many an SLO. Objects are freed as before once nothing
    refers to them; cycles among those that are here now are not.
    """
    gc.collect()
    gc.freeze()

"""Other servers on the emulated GPUs that Fermata's backends run: the peers of `peers.py`."""

"""Models that install from a package index and load offline; see `catalog.open_model`."""

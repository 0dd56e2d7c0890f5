"""Selection of DNNs for workers: as published, and by local search."""

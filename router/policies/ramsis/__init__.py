"""RAMSIS: which variant a worker runs, by tables solved ahead for random arrivals."""

"""The second driver of the core: arrivals, an emulated cluster, faults, goodput search, reports."""

"""Sub-clusters: which one serves which application and holds which backend."""

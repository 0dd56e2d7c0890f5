"""Placement: models to sub-clusters, once an epoch (Symphony section 4.7, appendix A)."""

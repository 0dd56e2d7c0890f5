"""Queries: requests of pipelines, with one deadline for all of their stages."""

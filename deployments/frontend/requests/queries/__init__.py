"""Queries: requests of pipelines, whose stages are requests of their own."""

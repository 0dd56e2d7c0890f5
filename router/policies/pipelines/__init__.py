"""Policies of the stages of pipelines."""

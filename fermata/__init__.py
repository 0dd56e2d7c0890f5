"""Fermata: SLO-first inference serving. Each folder here is a link to one at the top level."""

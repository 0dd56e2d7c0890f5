"""Frames for the page, made of routers' snapshots."""

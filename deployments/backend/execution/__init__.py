"""Runs batches on a device, real or emulated."""

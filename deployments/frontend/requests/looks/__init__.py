"""Looks at the inputs of waiting requests, as a frontend takes them or asks backends to."""

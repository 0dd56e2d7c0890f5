"""Jellyfish: clients on networks that change, each mapped to a DNN of the right input size."""

"""Runs torch networks on a GPU, as CUDA graphs of the batch sizes that are captured."""

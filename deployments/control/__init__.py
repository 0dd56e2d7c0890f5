"""The control plane and its loops."""

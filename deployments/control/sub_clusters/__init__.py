"""The control plane of a deployment with several routers."""

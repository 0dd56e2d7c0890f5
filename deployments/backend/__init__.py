"""The backend: runs batches that the router orders, on inputs that it fetches from frontends."""

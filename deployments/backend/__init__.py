"""The backend: runs the router's batches on inputs that it fetches from frontends."""

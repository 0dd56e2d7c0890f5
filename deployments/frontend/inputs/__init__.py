"""The inputs of requests: from a client's tensor or picture to a backend's payload."""

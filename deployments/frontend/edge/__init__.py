"""gRPC's server in C, for cleartext connections: opt-in, and built where it is to be used."""

"""Code that users put beside their own: the wire protocol, a streaming client, a load generator."""

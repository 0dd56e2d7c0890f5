"""What users put beside their own code: the wire protocol, a streaming client, a load generator."""

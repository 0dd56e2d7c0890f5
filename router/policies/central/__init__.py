"""The central queue: one queue for all backends, and the variant that time and load allow."""

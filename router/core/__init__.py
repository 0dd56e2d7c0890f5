"""The sans-IO scheduling engine: events and a time in, effects out."""

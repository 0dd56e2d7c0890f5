"""Errors, units, validation and logs that every other package stands on."""

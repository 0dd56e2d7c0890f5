"""Decides who is served when not everyone can be: shares, admission and precedence."""

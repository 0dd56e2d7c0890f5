"""How many backends: signals in, a change in backends out (Symphony section 4.4)."""

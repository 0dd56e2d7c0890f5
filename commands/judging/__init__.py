"""How good models are: tests for `fermata profile`."""

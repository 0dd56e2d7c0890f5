"""Models as they are offered: inputs, signatures, sequences and looks of applications."""

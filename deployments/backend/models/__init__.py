"""Models of a backend: loaded, measured and swapped within the memory of its device."""

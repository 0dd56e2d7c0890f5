"""Object detectors with real weights."""

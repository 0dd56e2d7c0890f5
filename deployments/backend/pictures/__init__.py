"""Pictures that are decoded and fitted where they run."""

"""Margins on profiled run times: their seeds, the ratios that teach them, and trials."""

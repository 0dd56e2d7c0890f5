"""Streams of `fermata stream`: what each sends, many at once, and their figures."""

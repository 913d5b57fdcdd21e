"""Comparisons of methods on known data: the demo's digits."""

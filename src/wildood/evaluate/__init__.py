"""Numpy on arrays of scores, nothing else: metrics, thresholds, selection, rankings, the share of unknowns."""

"""Numpy on arrays of scores, nothing else: metrics, thresholds, selection."""

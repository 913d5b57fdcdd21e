"""Scores: one number for each example from a classifier's outputs, higher = more OOD."""

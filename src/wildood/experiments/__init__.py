"""Experiments: grids of runs, their store, and tables of their results compared with the paper's."""

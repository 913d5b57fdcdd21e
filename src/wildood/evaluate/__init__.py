"""Arrays of scores in, numbers out: metrics, intervals, thresholds, selection, rankings, the share of OOD in wild data."""

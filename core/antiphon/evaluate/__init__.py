"""Evaluation: policies x data sets x pools x seeds, with intervals, tests, and a trajectory behind every number."""

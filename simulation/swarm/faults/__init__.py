"""The faults of a run, and when they come."""

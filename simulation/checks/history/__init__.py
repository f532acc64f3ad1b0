"""The history of what clients did, and its anomalies."""

"""The history of what clients did and saw, and its anomalies: pure, for simulated and real clusters alike."""

"""Checkers outside the cluster: what must always hold, and what must hold at the end of a run."""

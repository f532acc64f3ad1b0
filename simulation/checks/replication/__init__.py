"""Checkers of replication: what each replica holds, answers and takes into the in-sync set."""

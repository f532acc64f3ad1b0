"""Directed runs, by theme: each brings one order of events about that random seeds hardly find."""

"""Directed runs by theme: each produces one order of events that random seeds hardly ever find."""

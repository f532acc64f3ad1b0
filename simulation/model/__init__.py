"""Exhaustive search: the pure cores alone, every order of events within bounds."""

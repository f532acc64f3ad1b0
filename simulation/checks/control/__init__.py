"""Checkers of the controller: failure detection, fencing, and leaders that must be replaced."""

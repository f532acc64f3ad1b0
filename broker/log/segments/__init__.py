"""Segment files with their indexes: writing, reading, walking."""

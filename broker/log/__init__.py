"""Segment files of one partition: append, read, truncate, recover."""

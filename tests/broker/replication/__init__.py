"""The pure replication core: tests per rule, and interaction tests."""

"""The pure replication core: tests of single rules, and interaction tests."""

"""Mirrors the folders; tests/system uses real TCP and ZooKeeper."""

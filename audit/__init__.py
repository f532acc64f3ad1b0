"""Reads segment files of all brokers and proves that the replicas agree."""

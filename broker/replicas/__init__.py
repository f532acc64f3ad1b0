"""Local replicas: the shell around the replication core, and what carries its effects to other brokers."""

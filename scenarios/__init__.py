"""The stories of replication, one file each, told step by step on simulated brokers."""

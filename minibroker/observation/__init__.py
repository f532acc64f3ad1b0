"""A running cluster seen from outside: its state, its replicas, its events."""

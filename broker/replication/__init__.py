"""The pure replication core: step(state, event) -> effects."""

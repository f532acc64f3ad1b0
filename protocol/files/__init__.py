"""The formats of small files: those of a log directory, `cluster-state.json`, the list of acknowledged records."""

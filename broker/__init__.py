"""The broker process: replication core, log, and the shell around them."""

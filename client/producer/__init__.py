"""The producer: batches, memory, sequences, sending."""

"""The consumer: positions, fetching, decoding."""

"""The measured clusters: minibroker, Kafka, and the bare data path without a broker."""

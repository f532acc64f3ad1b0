"""The clusters that are measured: ours, Kafka, and the bare data path without a broker."""

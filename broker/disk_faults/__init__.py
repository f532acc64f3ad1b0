"""What a broker does about a faulty or full disk: offline replicas, repair, the scrubber."""

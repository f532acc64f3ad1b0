"""How fast minibroker is compared with a real Kafka on the same machine: cases, peers, statistics, and their report."""

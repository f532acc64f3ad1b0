"""How fast minibroker is, beside a real Kafka on the same machine: cases, peers, statistics, and the report of them."""

"""What a broker tells of itself: metrics, health, recent events."""

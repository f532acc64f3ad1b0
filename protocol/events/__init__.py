"""What a broker or controller reports of itself, as typed events."""

"""What processes send each other: frames, messages and their limits."""

"""Producer, Consumer and AdminClient for asyncio programs."""

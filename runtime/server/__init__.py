"""The answering half of the wire: connections become requests, within limits, and replies go back."""

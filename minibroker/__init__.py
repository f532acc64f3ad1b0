"""minibroker: a small replicated log. Front door."""

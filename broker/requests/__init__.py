"""Requests that a broker answers: one handler for each API, their limits and rights."""

"""Checkers of the simulated disks: files, failed syncs, damage, and the witness of what they must hold."""

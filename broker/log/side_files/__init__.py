"""The files next to the segments: checkpoints, epochs, log start, producer snapshots, marks of clean stops."""

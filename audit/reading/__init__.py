"""From files to facts: discovery, segments, side files, lists of acknowledged records."""

"""The cases, one file a subject; `catalogue` lists them all."""

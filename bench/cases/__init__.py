"""The cases, one file a subject; `catalogue` names them all."""

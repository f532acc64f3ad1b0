"""The rules of the controller: states, events, decisions. Pure."""

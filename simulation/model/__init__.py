"""The pure cores alone, every order of events up to a bound."""

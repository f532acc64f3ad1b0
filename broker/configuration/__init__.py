"""The settings of a broker and of topics: their table, their sources, and changes while it runs."""

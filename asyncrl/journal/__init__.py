"""The journal: one SQLite file that knows every token of a run."""

"""The terminal while a command works: the live line, plots, progress."""

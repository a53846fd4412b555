"""What a person sees while a command works: the live line, plots, progress."""

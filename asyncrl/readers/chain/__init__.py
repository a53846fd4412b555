"""A chain of stages as one story, read from its folder and from those of its runs."""

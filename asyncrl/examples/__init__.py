"""Tasks and base models that a laptop can make by itself."""

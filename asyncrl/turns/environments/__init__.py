"""The built-in environments."""

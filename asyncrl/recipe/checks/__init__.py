"""Checks across the sections of a recipe; each raises ValueError with the key to change."""

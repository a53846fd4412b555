"""Sections of a recipe, those of one subject in a file."""

"""Held-out evaluations: when each runs, and how one is made."""

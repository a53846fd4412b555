"""Placing and supervising the processes of a run."""

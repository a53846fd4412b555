"""Checkpoints: what the next step needs, written and read by all ranks."""

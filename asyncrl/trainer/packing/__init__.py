"""Packed sequences: micro-batches, prefix trees, and attention over them."""

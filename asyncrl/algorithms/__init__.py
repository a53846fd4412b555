"""Advantages (plain floats) and losses (torch)."""

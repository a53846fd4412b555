"""Runs side by side: what differs in their recipes, and whether one is better than another."""

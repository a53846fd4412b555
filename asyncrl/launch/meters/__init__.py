"""Meters of what the processes of a run use: memory, seconds."""

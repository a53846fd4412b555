"""Folders that processes on other machines fetch."""

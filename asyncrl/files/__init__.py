"""Folders that processes of a run on other machines fetch over HTTP."""

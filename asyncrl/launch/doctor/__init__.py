"""Probes of `asyncrl doctor`: what this machine has, and what is lost by what it lacks."""

"""Rollout servers: starting them, speaking to them, trusting their weights."""

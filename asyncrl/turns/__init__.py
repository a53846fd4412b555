"""Turns: environments, tools and agents that answer what a model wrote, within one trajectory.

What a plug-in imports is here; `docs/turns.md` shows how to write one.
"""

from asyncrl.turns.environment import End, Environment, EnvironmentUnavailable, Message, Observation, Recovery

__all__ = ["End", "Environment", "EnvironmentUnavailable", "Message", "Observation", "Recovery"]

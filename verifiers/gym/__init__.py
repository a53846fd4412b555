"""Answers to the tasks of reasoning-gym, an optional package: github.com/open-thought/reasoning-gym."""

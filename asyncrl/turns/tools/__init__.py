"""Tools that a model may call: functions with type hints and a docstring."""

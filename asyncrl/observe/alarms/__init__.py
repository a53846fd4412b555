"""Alarms of a run: what each of them finds in the numbers of the steps, and how a person is told."""

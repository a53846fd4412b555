"""The loops of a run: its tasks, waits with names, how far it is, the watchdog."""

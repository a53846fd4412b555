"""Numbers of a run: metrics, the terminal (live line, tables, curves), alarms."""

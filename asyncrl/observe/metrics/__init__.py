"""Numbers of a run: metrics.jsonl, its columns, estimates with intervals."""

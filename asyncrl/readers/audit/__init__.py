"""An audit of a run: its responses graded again by another verifier."""

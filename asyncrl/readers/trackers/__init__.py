"""Trackers: other programs that draw a run's numbers. A file per tracker, behind one Protocol.

Each has a child process, which reads metrics.jsonl: that file is the queue between the run and a tracker. The
run writes no row twice and never waits, and what a tracker has not taken is there for the next start.
"""

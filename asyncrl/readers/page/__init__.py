"""The page of runs: what `asyncrl view` serves or writes into one file."""

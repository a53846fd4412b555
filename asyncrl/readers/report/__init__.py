"""The report of a run: what it takes to print its table and to train it again. Read from its folder alone."""

"""Training from Python: `asyncrl.train`, `asyncrl.resume`, `asyncrl.Run`. The processes, the recipe and the
run folder are those of the command line, which is started as a program of its own."""

"""Between processes: what trainer and controller say to each other, the token of a run, files."""

"""The tasks of a run, in order: rows of data, rendered, checked and packed."""

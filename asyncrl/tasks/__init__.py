"""What a run asks, in order: rows of data as tasks, rendered, checked and packed."""

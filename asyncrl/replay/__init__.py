"""The replay queue, and the wire between it and the trainer."""

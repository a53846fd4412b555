"""The replay queue, its journal and the wire to the trainer."""

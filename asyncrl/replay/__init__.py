"""The replay queue: groups from admission to their one end."""

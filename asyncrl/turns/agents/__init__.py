"""Agents: programs of the user's that talk to the model by an endpoint, and the language of that endpoint."""

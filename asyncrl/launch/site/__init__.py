"""Where processes of a run start: this machine or the nodes of a cluster."""

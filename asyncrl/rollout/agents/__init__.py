"""Trajectories that an agent makes: its calls are sampled and recorded as turns."""

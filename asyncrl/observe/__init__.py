"""Everything that a person sees: metrics, the live line, the report, the page of trajectories."""

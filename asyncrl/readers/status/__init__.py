"""How a run stands or ended, as text."""

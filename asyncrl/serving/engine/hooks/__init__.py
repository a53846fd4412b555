"""Changes that each SGLang server of a run must have."""

"""A run folder: what it holds, who owns it, what a restart finds there."""

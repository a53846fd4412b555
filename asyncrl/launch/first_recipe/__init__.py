"""First recipes, which `asyncrl init` writes."""

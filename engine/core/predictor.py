"""How long a step takes, learned from the steps before. Pure."""

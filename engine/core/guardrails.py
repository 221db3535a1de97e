"""What is given up, and in which order, when service levels are missed. Pure."""

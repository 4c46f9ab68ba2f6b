"""What is learned: one objective, one page."""

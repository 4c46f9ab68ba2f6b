"""How it is learned: the step, the optimizer, the loop around them, and what is written down on the way."""

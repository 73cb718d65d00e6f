"""How the learning rate goes with the step, one file a schedule."""

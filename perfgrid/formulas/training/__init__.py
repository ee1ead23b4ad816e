"""Training: a layer, memory, the step and what follows for a whole run."""

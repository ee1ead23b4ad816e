"""The best design by gradients: input, problem, search and door."""

"""What dies, packages, networks, clusters and their energy cost."""

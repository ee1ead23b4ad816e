"""Pictures of studies and results."""

"""Pictures of studies and results: views, and what draws them."""

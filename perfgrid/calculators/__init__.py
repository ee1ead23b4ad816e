"""Scalar calculators: one collective, one chiplet package, without a study."""

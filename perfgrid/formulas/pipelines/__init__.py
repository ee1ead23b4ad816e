"""Pipelines: stages and the schedules that run them."""

"""Printing to a terminal or a pipe."""

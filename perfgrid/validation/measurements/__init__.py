"""Measurements of one's own: tables, logs, benchmark results and traces, read as the fields of records."""

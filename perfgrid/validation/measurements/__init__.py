"""Your own measurements: tables, logs, benchmark results and traces, read as the fields of records."""

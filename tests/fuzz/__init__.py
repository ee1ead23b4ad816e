"""Whatever a user types or opens: the program ends with a documented status, one line, and nothing left behind."""

"""Web pages: a report in one file, and the explorer, which serves the same page live."""

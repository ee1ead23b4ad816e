"""Pages of the documentation site that are made from the program: formulas, catalog, commands, API, study files."""

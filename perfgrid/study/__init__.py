"""Studies: files checked and expanded into a design space."""

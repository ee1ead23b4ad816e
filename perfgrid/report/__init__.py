"""Results made readable: numbers with units, tables, derivation trees, figures."""

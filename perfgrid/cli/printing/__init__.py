"""Results printed in a terminal: tables, derivations, progress."""

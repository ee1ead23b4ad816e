"""What is printed to a terminal or a pipe: tables, bars and lines; answers on one screen."""

"""What pictures show: a file for each kind of view, which turns a study or a result into a `Picture`."""

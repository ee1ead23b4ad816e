"""One number taken apart: the parts that add up to it, the formulas below it, and both as text."""

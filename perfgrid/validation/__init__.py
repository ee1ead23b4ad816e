"""Published measurements of real systems, predictions beside them, and constants calibrated to them."""

"""What a device achieves, and how another node, memory or budget changes it."""

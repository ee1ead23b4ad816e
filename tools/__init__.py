"""Commands of developers: what is not part of the package."""

"""Data sets by name and from files, and everything that describes or changes them."""

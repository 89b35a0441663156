"""Readers of source formats, from files on disk to tensors."""

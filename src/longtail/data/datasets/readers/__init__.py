"""Readers: one small module a source format, from files on disk to tensors."""

"""Batches of images on the device, from memory or from files."""

"""Integrations with other libraries and clusters, imported on use."""

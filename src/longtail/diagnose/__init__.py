"""Diagnosis of a classifier from its predictions."""

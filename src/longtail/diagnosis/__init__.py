"""Diagnosis of a classifier from its predictions, whatever framework made them."""

from longtail.diagnosis.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

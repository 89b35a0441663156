"""Registers ``lvis-crops``: ``longtail train --plugin reproduction/lvis/plugin.py --data lvis-crops …``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # the repository, which has the package `reproduction`

from reproduction.lvis import register

register()

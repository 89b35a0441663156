"""``python -m longtail.cli``: the command ``longtail`` where its script is not on the path."""

import sys

from longtail.cli import main

sys.exit(main())

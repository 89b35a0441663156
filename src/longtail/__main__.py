"""``python -m longtail``: the command ``longtail`` where its script is not on the path."""

import sys

from longtail.cli import main

if __name__ == "__main__":
    sys.exit(main())

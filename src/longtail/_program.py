"""The command that users type, for messages and reports."""

import os
import shlex

__all__ = ["program"]


def program() -> str:
    """``longtail``, with the plugin files that this process was started with."""
    files = filter(None, os.environ.get("LONGTAIL_PLUGINS", "").split(os.pathsep))
    return shlex.join(["longtail", *(word for file in files for word in ("--plugin", file))])

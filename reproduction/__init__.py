"""The paper's tables and figures beside ours, from finished runs. Not part of the wheel."""

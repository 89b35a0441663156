"""What tests of finished runs share."""

from dataclasses import replace

import pytest


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Gives the folder of a finished run on the digits, trained for three epochs; each is trained once a session."""
    from longtail.train import RunFolder, Trainer, defaults  # tests of the core need none of it

    known = {}

    def run(method, **changes):
        key = (method, tuple(sorted(changes.items())))
        if key not in known:
            folder = RunFolder(tmp_path_factory.mktemp("run") / method)
            settings = {"epochs": 3, "evaluate_every": 0, "device": "cpu"} | changes
            Trainer(replace(defaults("digits-lt", method), **settings), folder).run()
            known[key] = folder.path
        return known[key]

    return run

"""The order of steps if the number of runs that train at a time is not given."""

from longtail.train import Trainer
from longtail.train import fleet as fleets

STEPS = 6
"""Of an epoch of digits-lt."""


def turns_of(monkeypatch, number):
    """Have a device train so many runs at a time; a list that will have a run's name for every step."""
    steps, taken = Trainer.steps, []

    def recorded(self):
        for _ in steps(self):
            taken.append(self.folder.path.name)
            yield

    monkeypatch.setattr(Trainer, "steps", recorded)
    monkeypatch.setattr(fleets, "at_a_time", lambda recipe, dataset, device: number)
    return taken


def expected_turns(names, number):
    """Those of runs of one epoch each, by turns as long as they are under way."""
    rounds = [names[begin : begin + number] for begin in range(0, len(names), number)]
    return [name for some in rounds for _ in range(STEPS) for name in some]

"""What notebooks show of a description and a diagnosis: escaped HTML that IPython's protocol finds."""

from html.parser import HTMLParser

import torch
from IPython.core.formatters import HTMLFormatter

import longtail
from longtail.data import ArrayImages, DataSet, Normalisation, Split, describe_dataset

BAD = "<script>x</script>"


class Tags(HTMLParser):
    """The tags and the text of HTML; every tag that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert attrs == []
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_description():
    pixels = torch.arange(7 * 48, dtype=torch.int64).remainder(251).to(torch.uint8).view(7, 3, 4, 4)
    split = Split(ArrayImages(torch.cat([pixels, pixels[:1]])), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1]))
    data = DataSet(f"name {BAD}", (BAD, "oak & elm"), split, normalisation=Normalisation((0.5,) * 3, (0.5,) * 3))
    found = describe_dataset(data)
    shown = Tags(HTMLFormatter()(found))
    assert "script" not in shown.tags
    assert f"{BAD}5" in shown.text.replace("\n", "")
    assert "oak & elm3" in shown.text.replace("\n", "")
    assert "images with different labels (1):" in shown.text
    assert "imbalance factor 2" in shown.text


def test_diagnosis():
    test = {"labels": [0, 0, 0, 1, 1, 1], "predicted": [0, 0, 0, 0, 0, 1]}
    found = longtail.diagnose(test, counts={BAD: 500, "fox": 5})
    shown = Tags(HTMLFormatter()(found))
    assert "script" not in shown.tags
    rows = shown.text.split()
    assert rows[rows.index("test100.033.366.7") :] != []
    for line in [*found.findings, *found.next_steps, found.headline]:
        assert line in shown.text

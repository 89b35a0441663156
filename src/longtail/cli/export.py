"""``longtail export``: a finished run as ONNX, `torch.export`, a state dict or a timm model, with a model card."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from longtail._registry import load_plugins
from longtail.cli.parsing import Parser
from longtail.cli.show import print_line
from longtail.integrations.export import Format, export


def run(words: Sequence[str]) -> int:
    """Parse, export, print."""
    parser = Parser(
        "longtail export",
        "Write the model of a finished run for use without longtail, after its post-hoc step, with its preprocessing\n"
        "and a model card. Its logits are compared with those of the run.",
        epilog="state-dict has the weights of a plain model of torchvision or timm (or of longtail's own networks);\n"
        "timm is a folder that timm.create_model('local-dir:DIR', pretrained=True) reads.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.flag(
        "--to", "onnx, torch.export, state-dict or timm", choices=get_args(Format), required=True, metavar="FORMAT"
    )
    parser.flag("--out", "the new folder", type=Path, required=True, metavar="DIR")
    parser.flag(
        "--prior",
        "class probabilities where the model will be used: train (as in the training data), uniform, or a JSON file "
        'such as {"cat": 0.9, "fox": 0.1}; default: the logits of the run',
        metavar="PRIOR",
    )
    given = parser.read(words)
    load_plugins()
    with parser.errors_name_flags():
        found = export(given.run, given.to, given.out, prior=given.prior)
    print_line(f"{found.folder}: {', '.join(found.files)}")
    after = f" after --prior {given.prior}" if given.prior else ""
    print_line(f"Its logits are those of {given.run}{after}: the largest difference is {found.difference:.1g}.")
    return 0

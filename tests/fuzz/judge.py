"""What a case may do: be accepted, or be refused with one sentence; everything else is a failure."""

import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

NOISE = re.compile(r"Traceback|mistake in longtail|\w*Warning: |^\w+(Error|Exception)\b", re.MULTILINE)


class Failure(Exception):
    """The program did what it must not do."""


class Refused(Exception):
    """The program refused the input with one sentence."""


def refusal(text: str) -> Refused:
    """Check the sentence of a refusal."""
    sentence = text.strip()
    if NOISE.search(sentence):
        raise Failure(f"the message is an error of Python: {sentence[-600:]}")
    if not sentence.endswith(".") or "\n" in sentence or len(sentence) < 10:
        raise Failure(f"the message is not one sentence: {sentence[-600:]!r}")
    if re.search(r"[\0-\x08\x0b-\x1f\x7f]", sentence):
        raise Failure(f"the message has control characters: {sentence[-600:]!r}")
    return Refused(sentence)


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of the library; it may raise ValueError, TypeError or OSError with one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return function(*arguments, **options)
    except (ValueError, TypeError, OSError) as error:
        from longtail._program import printable, sentence_of

        text = sentence_of(error)
        if not isinstance(error, OSError) and "Expected" not in text:
            raise Failure(f"{type(error).__name__}: {text[-300:]}\n{traceback.format_exc()[-1500:]}") from error
        raise refusal(printable(text).replace("\n", r"\n")) from None
    except Exception as error:
        raise Failure(f"{type(error).__name__}: {str(error)[-300:]}\n{traceback.format_exc()[-1500:]}") from error


def command(*words: object) -> tuple[int, str]:
    """Run a command and return its exit code and what it printed; code 2 raises ``Refused``."""
    from longtail import cli

    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            code: Any = cli.main([str(word) for word in words])
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for source, target in zip(kept, (1, 2), strict=True):
                os.dup2(source, target)
                os.close(source)
        printed, said = (file.seek(0) or file.read().decode("utf-8", "replace") for file in (out, err))
    if code in (None, 0, 1):
        if NOISE.search(printed + said):
            raise Failure(f"exit code {code}, and {(printed + said)[-1500:]}")
        return code or 0, printed + said
    if code == 2:
        *notes, sentence = said.strip().split("\n")
        if any(
            not re.match(r"longtail: |.+ is finished|\w[\w.]*: ", note) for note in notes
        ) or not sentence.startswith("longtail: "):
            raise Failure(f"exit code 2, and {said[-1500:]!r}")
        raise refusal(sentence)
    raise Failure(f"exit code {code}, and {said[-1500:]}")


def quick_figures() -> None:
    """Draw figures, but do not render them, which takes most of the time of a report."""
    from longtail.report import page

    page.inline_svg = lambda *_: "<svg></svg>"


def short_training(*words: object) -> None:
    """Run a command, and stop training after two steps."""
    from longtail.train import Trainer

    before = Trainer.steps
    Trainer.steps = lambda self: islice(before(self), 2)  # type: ignore[method-assign]
    try:
        command(*words)
    finally:
        Trainer.steps = before  # type: ignore[method-assign]


def expect(same: bool, what: str) -> None:
    """Fail unless what was accepted equals what an independent reader gives."""
    if not same:
        raise Failure(f"accepted, but {what}")

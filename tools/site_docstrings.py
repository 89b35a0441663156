"""Griffe extension: docstrings become Markdown, formulas MathML, and help texts of settings docstrings."""

import ast
import contextlib
import html
import re
from typing import Any

import griffe
from latex2mathml.converter import convert

ROLE = re.compile(r":(?:func|class|meth|attr|mod|data|obj):`~?([^`<]+?)(?: <([^`>]+)>)?`")
INLINE = re.compile(r":math:`([^`]+)`")
SPACE = '<mspace width="0.17em"></mspace>'
BLOCK = re.compile(r"^( *)\.\. math:: (.*(?:\n\1 +\S.*)*)", re.MULTILINE)


def mathml(latex: str, *, block: bool = False) -> str:
    """Return a formula as MathML, which browsers draw without a script."""
    formula = convert(" ".join(latex.split()), display="block" if block else "inline")
    formula = re.sub("<mi>(log|exp|max|min)</mi>", rf"\g<0>{SPACE}", formula)
    formula = re.sub("(</(?:mi|mn|msub|msup)>)(<mi>(?:log|cos)</mi>)", rf"\1{SPACE}\2", formula)
    return f'<div class="formula">{formula}</div>' if block else f"<span>{formula}</span>"


def link(found: re.Match[str], obj: griffe.Object) -> str:
    """Return a role as a link to the object that it names, or as code if the site does not have the object."""
    text, target = found[1], (found[2] or found[1]).removesuffix("()")
    with contextlib.suppress(griffe.NameResolutionError):
        target = obj.resolve(target)
    return f'<autoref identifier="{target}" optional><code>{html.escape(text)}</code></autoref>'


def markdown(text: str, obj: griffe.Object) -> str:
    """Return a docstring in Markdown."""
    text = BLOCK.sub(lambda found: found[1] + mathml(found[2], block=True), text)
    text = INLINE.sub(lambda found: mathml(found[1]), text)
    text = ROLE.sub(lambda found: link(found, obj), text)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)


class Markdown(griffe.Extension):
    """Changes docstrings when they are read."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Read ``name: type = param(default, help, ...)`` as a plain default and a line of the class's docstring."""
        lines = []
        for name, field in cls.attributes.items():
            if isinstance(field.value, griffe.ExprCall) and str(field.value.function) == "param":
                default, text = field.value.arguments[:2]
                field.value = default
                lines.append(f"    {name}: {ast.literal_eval(str(text))}\n")
        if lines and cls.docstring is not None:
            cls.docstring.value += "\n\nArgs:\n" + markdown("".join(lines), cls)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj)

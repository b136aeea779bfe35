"""Functions of ``indexer`` and methods of ``query.Atlas``, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import indexer
from query import Atlas
from scripts.reference.markup import prose

_HEAD = """\
# Python

Written by `python -m scripts.reference` from signatures and docstrings. The commands of the same names do the same
([commands](commands.md)); the attributes of answers are the [keys of JSON](answers.md).
"""
_SECTIONS = re.compile(r"^(Args|Options|Returns|Raises|Note|Yields):\n+", re.MULTILINE)
_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
_WIDTH = 110  # of a signature on one line


def page() -> str:
    """The text of the page."""
    parts = [_HEAD, "\n## query.Atlas\n\n", _about(Atlas)]
    for name, method in _methods():
        parts.append(f"\n### Atlas.{name}\n\n{_signature(f'atlas.{name}', method)}\n{_about(method)}")
    parts.append("\n## indexer\n\nEach function does what the command of the same name does.\n")
    for name in indexer.__all__:
        function = getattr(indexer, name)
        if callable(function):
            parts.append(f"\n### indexer.{name}\n\n{_signature(f'indexer.{name}', function)}\n{_about(function)}")
    return "".join(parts)


def _methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in sorted(name for name in dir(Atlas) if not name.startswith("_")):
        method = getattr(Atlas, name)
        if inspect.isfunction(method):
            yield name, method


def _signature(name: str, function: Callable[..., Any]) -> str:
    """The call as code: on one line if it is short, else an argument on each."""
    signature = inspect.signature(function)
    known = [one for one in signature.parameters.values() if one.name != "self"]
    whole = _plain(str(signature.replace(parameters=known)))
    if len(name) + len(whole) <= _WIDTH:
        return f"```python\n{name}{whole}\n```\n"
    lines = []
    for one in known:
        if one.kind is one.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        lines.append(f"    {_plain(str(one))},")
    answer = signature.return_annotation
    arrow = "" if answer is signature.empty else f" -> {_plain(inspect.formatannotation(answer))}"
    return "\n".join(["```python", f"{name}(", *lines, f"){arrow}", "```", ""])


def _plain(text: str) -> str:
    """Types by their own names, and annotations that are strings without quotes."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return _MODULES.sub(
        "", text.removeprefix("'").removesuffix("'") if text.count("'") == 2 and text[0] == "'" else text
    )


def _about(documented: Any) -> str:
    """A docstring as Markdown: arguments and options as lists."""
    parts = _SECTIONS.split(inspect.getdoc(documented) or "")
    text = [prose(parts[0].strip())]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title in ("Args", "Options"):
            text.append(_listed(body))
        else:
            text.append(f"**{title}.** {prose(inspect.cleandoc(body))}")
    return "\n\n".join(filter(None, text)) + "\n"


def _listed(body: str) -> str:
    lines = inspect.cleandoc(body).splitlines()
    items: list[str] = []
    for line in lines:
        if not line.startswith(" ") and line.strip():
            items.append(line)
        elif line.strip():
            items[-1] += f" {line.strip()}"
    shown = []
    for item in items:
        name, _, about = item.removeprefix("- ").partition(": ")
        shown.append(f"- {name.replace('``', '`') if '``' in name else f'`{name}`'}: {prose(about)}")
    return "\n".join(shown)

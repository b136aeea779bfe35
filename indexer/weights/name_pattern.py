"""PEFT's ``rank_pattern`` and ``alpha_pattern``: values by module name, by keys that are regular expressions.

The keys come from strangers. A regular expression can take years to match and gigabytes to compile, so a key
that is a plain name is compared as one, and any other is taken only where it is short, made of harmless parts
and matched in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import regex

from indexer.errors import Skipped
from indexer.untrusted import shown

_PLAIN = regex.compile(r"[\w.\-]+")
# Literals, classes, groups and quantifiers, but no counts, no look-around, no back reference, and no group
# repeated by "+", which is compiled twice at every level of nesting.
_HARMLESS = regex.compile(
    r"(?!\?)(?:[\w\-]|\\[.\-_dwsDWS]|[.^$|*+?]|\[\^?[\w.\-]+\]|\((?:\?:)?|\)(?!\+))*+", regex.VERSION0
)
_LONGEST = 200
_MOST_EXPRESSIONS = 100
_SECONDS_EACH = 0.05
_SECONDS = 2.0


class NamePatterns:
    r"""A mapping from keys to values, asked by module name as PEFT does.

    The first key wins that matches as ``(.*\.)?(key)$``, else a key that is the name itself. ``name`` is what
    the mapping is called in adapter_config.json. Raises Skipped("adapter_unsupported") for a key that is not
    safe to match, Skipped("malformed") for one that is no regular expression.
    """

    def __init__(self, patterns: Mapping[str, Any], name: str) -> None:
        self._patterns = patterns
        self._name = name
        self._left = _SECONDS
        expressions = [key for key in patterns if not _PLAIN.fullmatch(key)]
        if len(expressions) > _MOST_EXPRESSIONS:
            raise self._unsafe(f"{len(expressions)} regular expressions")
        self._compiled = {key: self._compile(key) for key in expressions}

    def find(self, module: str) -> Any:
        """The value for a module; None where no key matches."""
        for key, value in self._patterns.items():
            expression = self._compiled.get(key)
            if expression is None:
                matches = module == key or module.endswith(f".{key}")
            else:
                matches = self._matches(key, expression, module)
            if matches:
                return value
        return self._patterns.get(module)

    def _compile(self, key: str) -> regex.Pattern[str]:
        if len(key) > _LONGEST or not _HARMLESS.fullmatch(key):
            raise self._unsafe(f"the regular expression {shown(key)}")
        try:
            return regex.compile(rf"(.*\.)?({key})$", regex.VERSION0)
        except regex.error as error:
            raise Skipped("malformed", f"{self._name} has a key that is no pattern: {shown(key)}") from error

    def _matches(self, key: str, expression: regex.Pattern[str], module: str) -> bool:
        started = time.monotonic()
        try:
            return expression.match(module, timeout=min(_SECONDS_EACH, self._left)) is not None
        except TimeoutError as error:
            raise self._unsafe(f"the regular expression {shown(key)}, which takes too long") from error
        finally:
            self._left = max(self._left - (time.monotonic() - started), 1e-6)

    def _unsafe(self, what: str) -> Skipped:
        return Skipped("adapter_unsupported", f"{self._name} holds {what}, more than is matched for a stranger")

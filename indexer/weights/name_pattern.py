"""PEFT's ``rank_pattern`` and ``alpha_pattern``: values by module name, by keys that are regular expressions.

The keys come from strangers. A regular expression can take years to match and gigabytes to compile, so one is taken
only where it is short, made of harmless parts and matched in time; and there may be hundreds of thousands of keys, so
those that are plain names, as PEFT writes them, are looked up instead of tried.

A plain key is a regular expression, too, in which a dot stands for any character. It matches from the start of a name
or from after one of its dots to its end, so that what it matches is as long as itself: keys are looked up by the end
of a name of their length, in which the characters at the key's dots do not count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import regex

from indexer.errors import Skipped
from indexer.untrusted import shown

_PLAIN = regex.compile(r"[\w.\-]+")
_BLANK = "\n"  # stands in no key that is plain and in no name
# Literals, classes, groups and quantifiers, but no counts, no look-around, no back reference, and no group
# repeated by "+", which is compiled twice at every level of nesting.
_HARMLESS = regex.compile(
    r"(?!\?)(?:[\w\-]|\\[.\-_dwsDWS]|[.^$|*+?]|\[\^?[\w.\-]+\]|\((?:\?:)?|\)(?!\+))*+", regex.VERSION0
)
_LONGEST = 200
_LONGEST_PLAIN = 1_000
_MOST_KEYS = 100_000
_MOST_EXPRESSIONS = 100
_SECONDS_EACH = 0.05
_SECONDS = 2.0
# Characters looked at for one adapter, in all: of an honest one a few times the names of its modules.
_MOST_CHARACTERS = 20_000_000

# Where a plain key has its dots.
_Dots = tuple[int, ...]


class NamePatterns:
    r"""A mapping from keys to values, asked by module name as PEFT does.

    The first key wins that matches as ``(.*\.)?(key)$``, else a key that is the name itself. ``name`` is what
    the mapping is called in adapter_config.json. ``lookups`` counts keys looked up and expressions tried. Raises
    Skipped("adapter_unsupported") for keys that are too many or not safe to match, Skipped("malformed") for one that
    is no regular expression, and for a module's name that is more than a line.
    """

    def __init__(self, patterns: Mapping[str, Any], name: str) -> None:
        self.lookups = 0
        self._characters = 0
        self._patterns = patterns
        self._name = name
        self._left = _SECONDS
        if len(patterns) > _MOST_KEYS:
            raise self._unsafe(f"{len(patterns)} keys")
        self._expressions: list[tuple[int, str, regex.Pattern[str]]] = []
        self._plain: dict[str, int] = {}  # a key, its dots blanked, to its first place among all keys
        self._dots: dict[int, list[_Dots]] = {}  # by length of key
        self._keys = list(patterns)
        for place, key in enumerate(self._keys):
            if not _PLAIN.fullmatch(key):
                self._expressions.append((place, key, self._compile(key)))
            elif len(key) > _LONGEST_PLAIN:
                raise self._unsafe(f"the key {shown(key)}")
            else:
                self._plain.setdefault(key.replace(".", _BLANK), place)
        if len(self._expressions) > _MOST_EXPRESSIONS:
            raise self._unsafe(f"{len(self._expressions)} regular expressions")
        for dots in {(len(key), _dots_in(key)) for key in self._plain}:
            self._dots.setdefault(dots[0], []).append(dots[1])

    def find(self, module: str) -> Any:
        """The value for a module; None where no key matches."""
        if "\n" in module:
            raise Skipped("malformed", f"the name of the module {shown(module)} is more than a line")
        place = self._plain_place(module)
        for position, key, expression in self._expressions:
            if position > place:
                break
            if self._matches(key, expression, module):
                place = position
                break
        return self._patterns[self._keys[place]] if place < len(self._keys) else self._patterns.get(module)

    def _plain_place(self, module: str) -> int:
        """The place of the first plain key that matches; the number of keys where none does."""
        found = len(self._keys)
        start = -1  # the name as a whole begins where a dot before it would end
        if len(module) > _LONGEST_PLAIN:
            start = module.find(".", len(module) - _LONGEST_PLAIN - 1)
            if start < 0:
                return found
        while True:
            end = module[start + 1 :]
            for dots in self._dots.get(len(end), ()):
                self._count(end)
                found = min(found, self._plain.get(_blanked(end, dots), found))
            start = module.find(".", start + 1)
            if start < 0:
                return found

    def _compile(self, key: str) -> regex.Pattern[str]:
        if len(key) > _LONGEST or not _HARMLESS.fullmatch(key):
            raise self._unsafe(f"the regular expression {shown(key)}")
        try:
            return regex.compile(rf"(.*\.)?({key})$", regex.VERSION0)
        except regex.error as error:
            raise Skipped("malformed", f"{self._name} has a key that is no pattern: {shown(key)}") from error

    def _matches(self, key: str, expression: regex.Pattern[str], module: str) -> bool:
        self._count(module)
        started = time.monotonic()
        try:
            return expression.match(module, timeout=min(_SECONDS_EACH, self._left)) is not None
        except TimeoutError as error:
            raise self._unsafe(f"the regular expression {shown(key)}, which takes too long") from error
        finally:
            self._left = max(self._left - (time.monotonic() - started), 1e-6)

    def _count(self, text: str) -> None:
        self.lookups += 1
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            raise self._unsafe(f"keys that take more than {_MOST_CHARACTERS:,} comparisons")

    def _unsafe(self, what: str) -> Skipped:
        return Skipped("adapter_unsupported", f"{self._name} holds {what}, more than is matched for a stranger")


def _dots_in(blanked: str) -> _Dots:
    return tuple(place for place, character in enumerate(blanked) if character == _BLANK)


def _blanked(text: str, dots: _Dots) -> str:
    """The text with blanks at those places."""
    pieces, after = [], 0
    for place in dots:
        pieces.append(text[after:place])
        after = place + 1
    return _BLANK.join([*pieces, text[after:]])

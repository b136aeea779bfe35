"""PEFT's ``rank_pattern`` and ``alpha_pattern``: values by module name, by keys that are regular expressions.

The keys are untrusted. A regular expression can take years to match and gigabytes to compile, so it is used only if it
is short, is small when its counts are written out, and matches in time (``regex``'s timeout does not limit compiling).
There may be hundreds of thousands of keys, so plain names, as PEFT writes them, are looked up in a dictionary.

A plain key is also a regular expression, in which a dot matches any character. It matches an ending of a name that
begins at its start or after one of its dots, so a match is as long as the key. Keys are therefore looked up by the
ending of the name that has their length, ignoring the characters at the key's dots.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import regex

from indexer.errors import Skipped
from indexer.untrusted import shown

_PLAIN = regex.compile(r"[\w.\-]+")
_BLANK = "\n"  # occurs in no plain key and in no name
# The parts of an expression that ``re`` and ``regex`` understand alike: groups, look-around, alternatives, repetitions
# and single characters or classes. Not back references, conditions, global flags, and parts that only one of them has.
_PART = regex.compile(
    r"""(?P<open>\((?:\?(?:[:=!>]|<[=!]|P<[a-zA-Z_]\w*>|[im]:))?) | (?P<close>\)) | (?P<bar>\|)
      | (?P<repeat>[*+?]|\{(?:(?P<least>\d{1,4})(?:,\d{0,4})?|,\d{1,4})\})[?+]?
      | (?P<single>[\w\ \-/:,;=<>!@\#%&~"'.^$] | \\(?:[dwsDWSbB]|[^\w\s])
        | \[\^?(?:(?!--)[\w.,:/\ *+?()$^\-] | \\(?:[dwsDWS]|[^\w\s]))+\])""",
    regex.VERSION0 | regex.VERBOSE,
)
# Parts of an expression after its counts are written out: "+" and {m,n} are compiled once more than they must occur.
_MOST_PARTS = 5_000
_MOST_NESTED = 40
_LONGEST = 200
_LONGEST_PLAIN = 1_000
_MOST_KEYS = 100_000
_MOST_EXPRESSIONS = 100
_SECONDS_EACH = 0.25
_SECONDS = 2.0
# All characters compared for one adapter; an honest one needs a few times the length of its module names.
_MOST_CHARACTERS = 20_000_000

# The positions of the dots in a plain key.
_Dots = tuple[int, ...]


class NamePatterns:
    r"""A mapping from keys to values, looked up by module name as PEFT does.

    The first key that matches as ``(.*\.)?(key)$`` is used, else a key that is the name itself.

    ``name``: the mapping's name in adapter_config.json. ``lookups``: the number of lookups and tried expressions.
    Raises Skipped("adapter_unsupported") for too many or unsafe keys, Skipped("malformed") for an invalid regular
    expression and for a module name of more than one line.
    """

    def __init__(self, patterns: Mapping[str, Any], name: str) -> None:
        self.lookups = 0
        self._characters = 0
        self._patterns = patterns
        self._name = name
        self._seconds_left = _SECONDS
        if len(patterns) > _MOST_KEYS:
            raise self._unsafe(f"{len(patterns)} keys")
        self._expressions: list[tuple[int, str, regex.Pattern[str]]] = []
        self._plain: dict[str, int] = {}  # key with blanked dots → its first index among all keys
        self._dots: dict[int, list[_Dots]] = {}  # by length of key
        self._keys = list(patterns)
        for index, key in enumerate(self._keys):
            if not _PLAIN.fullmatch(key):
                self._expressions.append((index, key, self._compile(key)))
            elif len(key) > _LONGEST_PLAIN:
                raise self._unsafe(f"the key {shown(key)}")
            else:
                self._plain.setdefault(key.replace(".", _BLANK), index)
        if len(self._expressions) > _MOST_EXPRESSIONS:
            raise self._unsafe(f"{len(self._expressions)} regular expressions")
        lengths_and_dots = {
            (len(key), tuple(position for position, character in enumerate(key) if character == _BLANK))
            for key in self._plain
        }
        for length, dots in lengths_and_dots:
            self._dots.setdefault(length, []).append(dots)

    def find(self, module: str) -> Any:
        """The value for a module; None if no key matches."""
        if "\n" in module:
            raise Skipped("malformed", f"the name of the module {shown(module)} contains a line break")
        index = self._plain_index(module)
        for expression_index, key, expression in self._expressions:
            if expression_index > index:
                break
            if self._matches(key, expression, module):
                index = expression_index
                break
        return self._patterns[self._keys[index]] if index < len(self._keys) else self._patterns.get(module)

    def _plain_index(self, module: str) -> int:
        """The index of the first matching plain key; the number of keys if none matches."""
        index = len(self._keys)
        start = -1  # the full name counts as an ending after a dot
        if len(module) > _LONGEST_PLAIN:
            start = module.find(".", len(module) - _LONGEST_PLAIN - 1)
            if start < 0:
                return index
        while True:
            end = module[start + 1 :]
            for dots in self._dots.get(len(end), ()):
                self._count(end)
                index = min(index, self._plain.get(_blanked(end, dots), index))
            start = module.find(".", start + 1)
            if start < 0:
                return index

    def _compile(self, key: str) -> regex.Pattern[str]:
        pattern = rf"(.*\.)?({key})$"
        if len(key) > _LONGEST or not _is_small(pattern):
            raise self._unsafe(f"the regular expression {shown(key)}")
        try:
            re.compile(pattern)  # as PEFT does
            return regex.compile(pattern, regex.VERSION0)
        except (re.error, regex.error, OverflowError) as error:
            raise Skipped("malformed", f"{self._name} has a key that is not a valid pattern: {shown(key)}") from error

    def _matches(self, key: str, expression: regex.Pattern[str], module: str) -> bool:
        self._count(module)
        started = time.monotonic()
        try:
            return expression.match(module, timeout=min(_SECONDS_EACH, self._seconds_left)) is not None
        except TimeoutError as error:
            raise self._unsafe(f"the regular expression {shown(key)}, which takes too long") from error
        finally:
            self._seconds_left = max(self._seconds_left - (time.monotonic() - started), 1e-6)

    def _count(self, text: str) -> None:
        self.lookups += 1
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            raise self._unsafe(f"keys that take more than {_MOST_CHARACTERS:,} comparisons")

    def _unsafe(self, content: str) -> Skipped:
        return Skipped("adapter_unsupported", f"{self._name} holds {content}, which is too much for untrusted patterns")


def _is_small(expression: str) -> bool:
    """Whether an expression consists of known parts, and of not too many when its counts are written out.

    The order of the parts is not checked: the compiler does that.
    """
    sizes = [0]  # of the groups that are open
    last = position = 0  # the size of the part that a repetition repeats
    while position < len(expression):
        part = _PART.match(expression, position)
        if part is None:
            return False
        position = part.end()
        if part["open"]:
            sizes.append(1)
            last = 0
        elif part["close"]:
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        elif part["repeat"]:
            least = 1 if part["repeat"] == "+" else int(part["least"] or 0)
            sizes[-1] += last * least
            last *= 1 + least
        else:
            last = 1 if part["single"] else 0
            sizes[-1] += 1
        if sizes[-1] > _MOST_PARTS or len(sizes) > _MOST_NESTED:
            return False
    return True


def _blanked(text: str, dots: _Dots) -> str:
    """The text with blanks at these positions."""
    pieces, after = [], 0
    for dot in dots:
        pieces.append(text[after:dot])
        after = dot + 1
    return _BLANK.join([*pieces, text[after:]])

"""Texts from a file that a user names: lines, JSON lines, CSV, TSV or Parquet, or the same from stdin.

The files may come from anywhere: sizes are bounded, nothing is evaluated, and only regular files are opened.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from indexer.console.stdin import STDIN, read_stdin
from indexer.errors import AtlasError, BadArgument, Call, Text
from indexer.regular_files import open_regular
from indexer.untrusted import lone_surrogate, shown

MOST_BYTES = 4 << 30  # of a file
MOST_STDIN = 256 << 20
MOST_TEXTS = 10_000  # that are kept by default
_MOST_KEPT = 256 << 20  # bytes of all texts that are kept; if they are more, every other one is dropped
LONGEST_LINE = 4 << 20  # bytes; characters of an entry of a JSON list
LONGEST_TEXT = 100_000  # characters; the rest of a longer text is left out
_MOST_COLUMN = 2 << 30  # bytes of a row group of a Parquet column, once decompressed
_USUAL_FIELD = "text"
GIVEN = "these texts"  # the name of texts that are not in a file

_JSON, _CSV = (".jsonl", ".ndjson", ".json"), {".csv": ",", ".tsv": "\t"}
_KNOWN = {**dict.fromkeys(_JSON, "json"), **dict.fromkeys(_CSV, "csv"), ".parquet": "parquet",
          ".txt": "lines", ".text": "lines", ".md": "lines"}  # fmt: skip
# The first bytes of files that are something else.
_OTHERS = {
    b"\x1f\x8b": "compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"\xfd7zXZ\x00": "compressed (xz)",
    b"BZh": "compressed (bzip2)",
    b"PK\x03\x04": "a zip archive",
    b"\xff\xfe\0\0": "UTF-32 text",
    b"\0\0\xfe\xff": "UTF-32 text",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"%PDF": "a PDF",
    b"ARROW1": "an Arrow file",
}
_ADVICE = "Give text in UTF-8: lines, .jsonl, .csv, .tsv or .parquet."
_CONVERT = {
    name: f"Convert it: iconv -f {name.removesuffix(' text')} -t UTF-8" for name in ("UTF-16 text", "UTF-32 text")
}
_NOT_UTF8 = "Convert it, for example: iconv -f LATIN1 -t UTF-8"
# If a larger share of its rows cannot be read, the file as a whole is refused. It is judged only after this many
# unreadable rows, and at its end.
_MOST_UNREADABLE, _JUDGED_FROM = 0.1, 1_000
_NAMED = 10  # rows in a note
_PIECE = 1 << 20


@dataclass(frozen=True)
class Texts:
    """Texts of one file, in its order, none of them empty.

    ``total``: the number of texts in the file. If there are many, ``texts`` is an evenly spaced sample. ``notes``:
    remarks on texts that were left out.
    """

    name: str
    texts: tuple[str, ...]
    total: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class _Unreadable:
    """A row that is left out.

    ``where``: its position ("line 3"). ``error``: raised if the file is refused. ``is_rare``: the fault concerns this
    row alone, so the file is never refused because of it.
    """

    where: str
    problem: str
    error: AtlasError
    is_rare: bool = False


_Row = tuple[str, str | None] | _Unreadable  # where a text is, and the text


def read_texts(path: str | Path, field: str | None = None, *, most: int | None = MOST_TEXTS) -> Texts:
    """The texts in a file, or on stdin (``-``), at most ``most``, evenly spaced; None for all that fit into 256 MiB.

    A line of a text file is one text; in JSON lines, CSV, TSV and Parquet it is the ``field`` of a row, by default the
    one called "text", else the only one. The suffix of the name decides; if it is unknown, the content does: Parquet,
    JSON lines, CSV if a ``field`` is given, else lines. JSON may also be one list, over any number of lines. Empty
    texts are left out, and texts are cut after 100,000 characters.

    Texts that cannot be read are left out as well, with a note, if they are a tenth of all or fewer; one that holds
    half of a surrogate pair always is.

    Raises AtlasError if there is no such file, it holds no text, is too large, or is not UTF-8 text, and BadArgument
    for a ``field`` that it does not have.
    """
    name = "stdin" if str(path) == STDIN else str(path)
    sample, left_out = _EvenlySpaced(most), _LeftOut(name)
    with _opened(path, name) as file:
        start = _start_of(file, name)
        kind = _KNOWN.get(Path(path).suffix.lower(), "") if name != "stdin" else ""
        if start.startswith(b"PAR1"):
            kind = "parquet"
        elif kind == "parquet":
            raise AtlasError(f"{name} is not a Parquet file.", _ADVICE)
        elif not kind:
            is_json = _is_object(start)
            kind = "json" if is_json else "lines" if field is None else "csv"
        if kind == "lines" and field is not None:
            raise BadArgument(f"{name} holds lines of text, which have no field {field!r}.", "Leave `field` out.")
        rows: Iterator[_Row]
        try:
            if kind == "parquet":
                rows = ((f"row {number:,}", text) for number, text in enumerate(_of_parquet(file, field, name), 1))
            elif kind == "csv":
                # Where the name does not say it: a tab if the first line has one.
                separator = "\t" if b"\t" in start.split(b"\n", 1)[0] else ","
                rows = _of_csv(file, field, name, _CSV.get(Path(path).suffix.lower(), separator))
            elif kind == "json":
                rows = _of_json(file, field, name)
            else:
                rows = _lines(file, name)
            _sort(rows, sample, left_out)
        except OSError as error:
            raise AtlasError(f"{name} cannot be read: {error.strerror or error}.", _ADVICE) from error
    texts = sample.texts()
    if not texts:
        in_field = "" if field is None else f" in its field {field!r}"
        raise left_out.errors[0] if left_out.errors else AtlasError(f"{name} holds no text{in_field}.", _ADVICE)
    notes = []
    if len(texts) < sample.count:
        notes.append(f"{name} holds {sample.count:,} texts; {len(texts):,} of them, evenly spaced, were used")
    if sample.cut:
        longer, verb = ("1 long text", "was") if sample.cut == 1 else (f"{sample.cut:,} long texts", "were")
        notes.append(f"{longer} of {name} {verb} cut after {LONGEST_TEXT:,} characters")
    return Texts(name, tuple(texts), sample.count, (*notes, *left_out.notes()))


def given_texts(texts: Sequence[str], *, most: int | None = MOST_TEXTS) -> Texts:
    """Texts that are not in a file, cut, thinned out and left out like those of a file.

    Raises AtlasError if none can be read or all are empty, and BadArgument for something other than texts.
    """
    sample, left_out = _EvenlySpaced(most), _LeftOut(GIVEN)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise BadArgument(f"Text {number:,} is {type(text).__name__}, not str.", "Give a list of str.")
    _sort(((f"text {number:,}", text) for number, text in enumerate(texts, start=1)), sample, left_out)
    if not sample.count:
        raise left_out.errors[0] if left_out.errors else AtlasError("There is no text.", "Give a few dozen texts.")
    return Texts(GIVEN, tuple(sample.texts()), sample.count, tuple(left_out.notes()))


def _sort(rows: Iterator[_Row], sample: _EvenlySpaced, left_out: _LeftOut) -> None:
    """Add each text to ``sample``, or to ``left_out``. Raises AtlasError if too many cannot be read."""
    count = 0
    for row in rows:
        count += 1
        if isinstance(row, _Unreadable):
            left_out.add(row)
        elif row[1] is not None:
            if (half := lone_surrogate(row[1])) is None:
                sample.add(row[1])
            else:
                problem = f"holds {half}, half of a surrogate pair, which is no character"
                left_out.add(_unreadable(left_out.name, row[0], problem, "Leave it out.", is_rare=True))
        if left_out.common > _JUDGED_FROM:
            left_out.check(count)
    left_out.check(count)


def _unreadable(name: str, where: str, problem: str, hint: str, *, is_rare: bool = False) -> _Unreadable:
    of_file = "" if name == GIVEN else f" of {name}"
    return _Unreadable(where, problem, AtlasError(f"{where[:1].upper()}{where[1:]}{of_file} {problem}.", hint), is_rare)


@dataclass
class _LeftOut:
    """Rows of a file that cannot be read; ``common``: how many of them may be like all the others."""

    name: str
    count: int = 0
    common: int = 0
    positions: list[str] = field(default_factory=list)
    errors: list[AtlasError] = field(default_factory=list)
    first: str = ""

    def add(self, row: _Unreadable) -> None:
        self.count += 1
        self.common += not row.is_rare
        if len(self.positions) < _NAMED:
            self.positions.append(row.where)
        self.first = self.first or f"{row.where} {row.problem}"
        if not self.errors or (not row.is_rare and self.common == 1):  # the one that is raised comes first
            self.errors.insert(0, row.error)

    def check(self, count: int) -> None:
        """Raise AtlasError if too many of the rows cannot be read."""
        if self.common > _MOST_UNREADABLE * count:
            raise self.errors[0]

    def notes(self) -> list[str]:
        """Notes on the rows that were left out, with the reason."""
        if not self.count:
            return []
        if self.count == 1:
            return [f"1 text of {self.name} was left out: {self.first}"]
        kind = self.positions[0].partition(" ")[0]
        numbers = ", ".join(position.partition(" ")[2] for position in self.positions)
        ellipsis = " …" if self.count > len(self.positions) else ""
        return [f"{self.count:,} texts of {self.name} were left out ({kind}s {numbers}{ellipsis}): {self.first}"]


class _EvenlySpaced:
    """Keeps at most ``most`` of the texts that are added, evenly spaced, in one pass, and at most _MOST_KEPT bytes.

    Every ``_step``-th text is kept; once there are twice as many as asked for, every other one is dropped.
    """

    def __init__(self, most: int | None) -> None:
        self.count = self.cut = 0
        self._most, self._step, self._size = most, 1, 0
        self._kept: list[str] = []

    def add(self, text: str) -> None:
        text = text.strip()
        if not text:
            return
        if self.count % self._step == 0:
            self.cut += len(text) > LONGEST_TEXT
            self._kept.append(text[:LONGEST_TEXT])
            self._size += sys.getsizeof(self._kept[-1])
            is_many = self._most is not None and len(self._kept) >= 2 * max(self._most, 1)
            if is_many or self._size > _MOST_KEPT:
                self._kept, self._step = self._kept[::2], 2 * self._step
                self._size = sum(map(sys.getsizeof, self._kept))
        self.count += 1

    def texts(self) -> list[str]:
        sample, most = self._kept, self._most
        if most is None or len(sample) <= most:
            return sample
        return [sample[index * len(sample) // most] for index in range(most)]


def _opened(path: str | Path, name: str) -> IO[bytes]:
    if name == "stdin":
        return io.BytesIO(read_stdin(MOST_STDIN))
    try:
        file = open_regular(Path(path), through_links=True)
    except FileNotFoundError as error:
        raise AtlasError(f"There is no file {name}.", _ADVICE) from error
    except (OSError, ValueError) as error:
        raise AtlasError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.", _ADVICE) from error
    if os.fstat(file.fileno()).st_size > MOST_BYTES:
        file.close()
        raise AtlasError(f"{name} has more than {MOST_BYTES >> 30} GiB.", "Give a part of it.")
    return file


def _start_of(file: IO[bytes], name: str) -> bytes:
    """The first bytes; the file is at its start again. Raises AtlasError if they are not those of text or Parquet."""
    start = file.read(1 << 16)
    file.seek(0)
    for magic, kind in _OTHERS.items():
        if start.startswith(magic):
            raise AtlasError(f"{name} is {kind}.", _CONVERT.get(kind, _ADVICE))
    return start


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, str] | _Unreadable]:
    """The position of each line ("line 3", from 1), and its text."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        where = f"line {number:,}"
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield _unreadable(name, where, f"has more than {LONGEST_LINE >> 20} MiB", _ADVICE)
        elif b"\0" in line:
            yield _unreadable(name, where, "is not text", _ADVICE)
        else:
            try:
                yield where, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                yield _unreadable(name, where, "is not UTF-8", _NOT_UTF8)


def _is_object(start: bytes) -> bool:
    """Whether the first line is a JSON object."""
    line = start.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _chosen(field: str | None, names: Iterable[str], where: str) -> str:
    """The field that holds the text. Raises BadArgument that lists the others."""
    fields = list(names)
    if field in fields:
        return str(field)
    names_listed = ", ".join(shown(field_name, 40) for field_name in fields[:12]) or "none"
    if field is not None:
        raise BadArgument(
            f"{where} has no field {field!r}; its fields are: {names_listed}.", Text("Name one: ", Call(field="NAME"))
        )
    if _USUAL_FIELD in fields or len(fields) == 1:
        return _USUAL_FIELD if _USUAL_FIELD in fields else fields[0]
    raise BadArgument(
        f"{where} has several fields: {names_listed}.", Text("Say which holds the text: ", Call(field="NAME"))
    )


def _of_json(file: IO[bytes], field: str | None, name: str) -> Iterator[_Row]:
    """The texts of JSON lines, or of one JSON list over any number of lines: strings, or a field of objects."""
    start = file.read(1 << 10)
    file.seek(0)
    is_list = start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    is_first = True
    for entry in _json_list(file, name) if is_list else _json_lines(file, name):
        if isinstance(entry, _Unreadable):
            yield entry
            continue
        where, value = entry
        try:
            text = value[_chosen(field, value, f"{where.capitalize()} of {name}")] if isinstance(value, dict) else value
        except BadArgument as error:
            if is_first:
                raise
            yield _Unreadable(where, "lacks the field", error)
            continue
        is_first = False
        if text is None or isinstance(text, str):
            yield where, text
        else:
            yield _unreadable(name, where, f"holds {type(text).__name__}, not a text", "Name another `field`.")


def _json_lines(file: IO[bytes], name: str) -> Iterator[tuple[str, Any] | _Unreadable]:
    """The position and the value of each line that is not empty."""
    for line in _lines(file, name):
        if isinstance(line, _Unreadable):
            yield line
        elif line[1].strip():
            try:
                yield line[0], json.loads(line[1])
            except (ValueError, RecursionError):
                yield _unreadable(name, line[0], "is not JSON", "Give one JSON object in each line.")


def _json_list(file: IO[bytes], name: str) -> Iterator[tuple[str, Any] | _Unreadable]:
    """The position and the value of each entry of a JSON list. Raises AtlasError if the file is not one JSON list.

    Parsed as a whole, a list can take 25 times its size in memory.
    """
    text = _JsonText(file)
    try:
        number, following = 0, text.take("[")
        while following != "]":
            if number:
                following = text.take(",")
            elif text.following() == "]":
                break
            number += 1
            value, is_utf8 = text.value()
            where = f"entry {number:,}"
            yield (where, value) if is_utf8 else _unreadable(name, where, "is not UTF-8", _NOT_UTF8)
            following = text.following()
        text.take("]")
        if text.following():
            raise text.error("more follows after the list")
    except _NotJson as error:
        raise AtlasError(f"{name} is not a JSON list ({error}).", "Give one JSON object in each line.") from error


class _NotJson(ValueError):
    """A text is not JSON; the message says in which line and why."""


class _JsonText:
    """Reads JSON in UTF-8 with one value at a time in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")  # bytes that are not UTF-8
        self._text, self._at, self._lines_before = "", 0, 0

    def following(self) -> str:
        """The next character that is not blank, without consuming it; "" at the end."""
        while True:
            length = len(self._text)
            while self._at < length and self._text[self._at] in " \t\n\r":
                self._at += 1
            if self._at < length:
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self, character: str) -> str:
        """The next character that is not blank. Raises _NotJson if it is another one."""
        if self.following() != character:
            raise self.error(f"expected {character!r}")
        self._at += 1
        return character

    def value(self) -> tuple[Any, bool]:
        """The next value, and whether it is UTF-8. Raises _NotJson if it is not a value, or too long."""
        self.following()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except RecursionError:
                raise self.error("nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > LONGEST_LINE:
                    raise self.error(f"an entry of more than {LONGEST_LINE >> 20} MiB, or not JSON") from error
                if not self._read_on():  # it is whole, and wrong
                    position = getattr(error, "pos", self._at)
                    raise self.error(getattr(error, "msg", str(error)[:80]), position) from error
                continue
            if end == len(self._text) and self._read_on():
                continue  # the digits of a number may go on
            is_utf8 = lone_surrogate(self._text[self._at : end]) is None
            self._at = end
            return value, is_utf8

    def error(self, why: str, position: int | None = None) -> _NotJson:
        """The error at this place, or at another one of the text in memory."""
        line = self._lines_before + self._text.count("\n", 0, self._at if position is None else position) + 1
        return _NotJson(f"line {line:,}: {why}")

    def _read_on(self) -> bool:
        """Drop what was read, and add a piece as long as the rest; whether there was one."""
        piece = self._file.read(max(_PIECE, len(self._text) - self._at))
        text = self._decoder.decode(piece, final=not piece)
        if piece or text:
            self._lines_before += self._text.count("\n", 0, self._at)
            self._text, self._at = self._text[self._at :] + text, 0
        return bool(piece or text)


def _of_csv(file: IO[bytes], field: str | None, name: str, separator: str) -> Iterator[_Row]:
    """The texts of a column; the first row names the columns."""
    # A line may be a part of a text, so it cannot be left out alone.
    csv.field_size_limit(LONGEST_LINE)  # a text may be longer than the 128 KiB that Python allows
    rows = csv.reader(_lines_of_csv(file, name), delimiter=separator)
    try:
        header = next(rows, [])
        if header and len(set(header)) < len(header):
            raise BadArgument(f"{name} names a column twice.", _ADVICE)
        column = header.index(_chosen(field, header, name)) if header else 0
        for row in rows:
            where = f"line {rows.line_num:,}"
            if len(row) > column and lone_surrogate(row[column]) is not None:
                yield _unreadable(name, where, "is not UTF-8", _NOT_UTF8)
            elif len(row) > column:
                yield where, row[column]
            elif row:
                raise AtlasError(
                    f"Line {rows.line_num:,} of {name} has {len(row)} columns, not {len(header)}.", _ADVICE
                )
    except csv.Error as error:
        raise AtlasError(f"Line {rows.line_num:,} of {name} is not CSV: {error}.", _ADVICE) from error


def _lines_of_csv(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines, in which a byte that is not UTF-8 becomes a lone surrogate: only a text that has one is left out."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise AtlasError(f"Line {number:,} of {name} has more than {LONGEST_LINE >> 20} MiB.", _ADVICE)
        if b"\0" in line:
            raise AtlasError(f"Line {number:,} of {name} is not text.", _ADVICE)
        yield line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _of_parquet(file: IO[bytes], field: str | None, name: str) -> Iterator[str]:
    """The texts of a column of strings."""
    import pyarrow
    from pyarrow import compute, parquet

    limits = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}
    try:
        schema = parquet.ParquetFile(cast(Any, file), **limits).schema_arrow
        column = _chosen(field, schema.names, name)
        kind = schema.field(column).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if inner not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            raise BadArgument(f"The column {column!r} of {name} holds {str(kind)[:60]}, not text.", _ADVICE)
        # Each different text is held once: a file of a kilobyte can repeat one of gigabytes in every row.
        table = parquet.ParquetFile(cast(Any, file), read_dictionary=[column], **limits)
        column_number = table.schema.names.index(column)
        for group in range(table.metadata.num_row_groups):
            if table.metadata.row_group(group).column(column_number).total_uncompressed_size > _MOST_COLUMN:
                raise AtlasError(f"A row group of {name} has more than {_MOST_COLUMN >> 30} GiB of text.", _ADVICE)
        for batch in table.iter_batches(batch_size=1024, columns=[column], use_threads=False):
            rows = batch.column(0)
            if not isinstance(rows, pyarrow.DictionaryArray):
                rows = rows.dictionary_encode()
            texts = compute.utf8_slice_codeunits(rows.dictionary, 0, LONGEST_TEXT + 1).to_pylist()
            yield from (texts[index] for index in rows.indices.to_pylist() if index is not None)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        why = shown(" ".join(str(error).split()), 120)
        raise AtlasError(f"{name} cannot be read as Parquet: {why}.", _ADVICE) from error

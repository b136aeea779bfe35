"""Texts from files of any kind; what is no text gets one clear line."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import query.models.texts
from indexer.errors import AtlasError, BadArgument
from query.faces.cli import main
from query.models.texts import given_texts, read_texts
from query.questions.ask import ask
from tests.conftest import ROOT

THREE = ("The sky is blue.", "Zwölf Boxkämpfer jagen Viktor.", "天気がいい。")


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def rows() -> list[dict[str, object]]:
    return [{"text": text, "label": number, "other": "x"} for number, text in enumerate(THREE)]


def parquet(folder: Path, columns: dict[str, object]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def test_every_kind_of_file_gives_the_same_texts(tmp_path):
    files = [
        write(tmp_path, "a.txt", "\n\n".join(THREE) + "\n"),
        write(tmp_path, "with-mark", b"\xef\xbb\xbf" + "\r\n".join(THREE).encode()),
        write(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows())),
        write(tmp_path, "no-suffix", "\n".join(json.dumps(row) for row in rows())),
        write(tmp_path, "strings.jsonl", "\n".join(json.dumps(text) for text in THREE)),
        write(tmp_path, "list.json", json.dumps(rows())),
        write(tmp_path, "indented.json", "\n" + json.dumps(rows(), indent=2)),
        write(tmp_path, "a.csv", "label,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(THREE))),
        write(tmp_path, "a.tsv", "label\ttext\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(THREE))),
        parquet(tmp_path, {"label": [1, 2, 3, 4], "text": [*THREE, None]}),
    ]
    for file in files:
        texts = read_texts(file)
        assert (texts.texts, texts.total, texts.notes) == (THREE, 3, ()), file


def test_a_field_is_named(tmp_path):
    lines = write(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows()))
    assert read_texts(lines, "other").texts == ("x", "x", "x")
    with pytest.raises(BadArgument, match="no field 'body'; its fields are: 'text', 'label', 'other'"):
        read_texts(lines, "body")
    with pytest.raises(BadArgument, match="several fields"):
        read_texts(write(tmp_path, "b.csv", "a,b\n1,2\n"))
    with pytest.raises(BadArgument, match="holds int64, not text"):
        read_texts(parquet(tmp_path, {"text": [1, 2]}))
    with pytest.raises(BadArgument, match="lines of text"):
        read_texts(write(tmp_path, "a.txt", "one"), "text")


def test_stdin(monkeypatch):
    class Stream:
        def __init__(self, content: bytes) -> None:
            self.buffer = io.BytesIO(content)

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    monkeypatch.setattr("sys.stdin", Stream("\n".join(THREE).encode()))
    assert read_texts("-").texts == THREE
    monkeypatch.setattr("sys.stdin", Stream(b"a,b\n1,one\n2,two\n"))
    assert read_texts("-", "b").texts == ("one", "two")


def test_of_many_texts_some_are_kept_evenly_spaced(tmp_path):
    file = write(tmp_path, "a.txt", "\n".join(map(str, range(100_000))))
    texts = read_texts(file, most=1000)
    numbers = [int(text) for text in texts.texts]
    steps = [after - before for before, after in pairwise(numbers)]
    assert len(numbers) == 1000
    assert max(steps) <= 2 * min(steps)
    assert numbers[0] < 200
    assert numbers[-1] > 99_800
    assert texts.total == 100_000
    assert texts.notes == (f"{file} holds 100,000 texts; 1,000 of them, evenly spaced, were used",)
    assert len(read_texts(file, most=None)) == 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b" \n\n\t\n", "holds no text"),
        ("a.csv", b"text\n", "holds no text"),
        ("a.txt", b"\x00\x01\x02", "is not text"),
        ("a.txt", b"one\n" + b"x" * 70_000 + b"\n\x00\n", "is not text"),
        ("a.txt", "Grüße\n".encode("latin1"), "Line 1 of .* is not UTF-8"),
        ("a.txt", "Grüße\n".encode("utf-16"), "is UTF-16 text"),
        ("a.txt", "Grüße\n".encode("utf-32"), "is UTF-32 text"),
        ("a.txt", "Grüße\n".encode("utf-16-le"), "is not text"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "is compressed"),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', "Line 2 of .* is not JSON"),
        ("a.jsonl", b'{"text": 3}\n', "holds int, not a text"),
        ("a.jsonl", b"[" * 100_000, "is not a JSON list"),
        ("a.jsonl", b'{"a":' * 100_000, "Line 1 of .* is not JSON"),
        ("a.json", b'[\n{"text": "a"},\n{"text": 3}\n]', "Entry 2 of .* holds int, not a text"),
        ("a.json", b'[\n{"text": "a"},\n{"text"}\n]', "is not a JSON list .line 3"),
        ("a.csv", b"a,a\n1,2\n", "names a column twice"),
        ("a.csv", b'text\n"' + b"an open quote\n" * 400_000, "is not CSV"),
        ("a.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1", "cannot be read as Parquet"),
        ("a.parquet", b"text", "is not a Parquet file"),
        ("a.txt", b"x" * (query.models.texts.LONGEST_LINE + 5), "has more than 4 MiB"),
    ],
)
def test_what_is_no_text_gets_one_line(tmp_path, name, content, message):
    with pytest.raises(AtlasError, match=message) as caught:
        read_texts(write(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def many(line: bytes, bad: bytes) -> bytes:
    return b"".join(bad if number in (7, 31) else line for number in range(40))


@pytest.mark.parametrize(
    ("name", "content", "left_out", "why"),
    [
        ("a.jsonl", b'"a"\n{"text": "b \\ud800"}\n"c"\n', "1 text", r"line 2 holds \ud800, half of a surrogate pair"),
        ("a.json", b'["a", "\\udcff \\uD83D\\uDE00", "c", "\\ud83d\\ude00"]', "1 text", r"entry 2 holds \udcff"),
        ("a.json", b'["a"' + b', "\xc3\xa9"' * 20 + b', "\xff \xc3"]', "1 text", "entry 22 is not UTF-8"),
        ("a.json", b'["a", "\\uDBFF", "\\ud83d\\ude00"]', "1 text", r"entry 2 holds \udbff"),
        ("a.txt", many(b"one\n", b"\xed\xa0\x80\n"), "2 texts (lines 8, 32)", "line 8 is not UTF-8"),
        ("a.txt", many(b"one\n", b"a\0b\n"), "2 texts (lines 8, 32)", "line 8 is not text"),
        ("a.txt", many(b"one\n", b"x" * (5 << 20) + b"\n"), "2 texts (lines 8, 32)", "line 8 has more than 4 MiB"),
        ("a.jsonl", many(b'"one"\n', b'{"text": "o\n'), "2 texts (lines 8, 32)", "line 8 is not JSON"),
        ("a.jsonl", many(b'"one"\n', b"[" * 99_999 + b"\n"), "2 texts (lines 8, 32)", "line 8 is not JSON"),
        ("a.jsonl", many(b'{"text": "one"}\n', b'{"text": [1]}\n'), "2 texts (lines 8, 32)", "holds list, not a text"),
        ("a.jsonl", many(b'{"text": "one"}\n', b'{"a": 1, "b": 2}\n'), "2 texts (lines 8, 32)", "lacks the field"),
        ("a.jsonl", b'{"text": "one"}\n' * 40 + b'{"text": "cut sho', "1 text", "line 41 is not JSON"),
        ("a.csv", b"text,n\n" + many(b'"one\ntwo",1\n', b'"o\xff\n",1\n'), "2 texts (lines 17, 65)", "is not UTF-8"),
    ],
)
def test_a_text_that_cannot_be_read_costs_that_text(tmp_path, name, content, left_out, why):
    texts = read_texts(write(tmp_path, name, content))
    assert len(texts) >= 1
    assert "".join(texts.texts).isprintable() or name == "a.csv"
    (note,) = texts.notes
    assert note.startswith(f"{left_out.split(' (')[0]} of {tmp_path / name} ")
    assert left_out.partition(" ")[2] in note.replace(f" of {tmp_path / name} were left out", "")
    assert why in note


def test_a_file_of_which_more_cannot_be_read_is_refused(tmp_path):
    for content, message in (
        (b'"\\ud800"\n"\\udfff"\n', r"Line 1 of .* holds \\ud800, half of a surrogate pair"),
        (b'"a"\n' * 17 + b"x\n\n7\n", "Line 18 of .* is not JSON"),
    ):
        with pytest.raises(AtlasError, match=message):
            read_texts(write(tmp_path, "a.jsonl", content))


def test_texts_that_are_given_are_looked_at_like_those_of_a_file():
    given = given_texts(["a", "b \ud800", "c", "", "d\0"])
    assert given.texts == ("a", "c", "d\0")
    assert given.notes == (r"1 text of these texts was left out: text 2 holds \ud800, half of a surrogate pair, which is no character",)  # fmt: skip
    for texts, message in (([], "no text"), (["\ud800"], "half of a surrogate"), (["a", None], "Text 2 is NoneType")):
        with pytest.raises(AtlasError, match=message):
            given_texts(texts)


def test_a_json_list_is_read_an_entry_at_a_time(tmp_path, monkeypatch):
    """As a whole it takes 4 MB."""
    monkeypatch.setattr(query.models.texts, "_PIECE", 1 << 14)
    rows = [{"text": f"text {number}, “quoted”\n", "tokens": [number] * 20} for number in range(4_000)]
    for indent in (None, 1):
        file = write(tmp_path, "a.json", json.dumps(rows, indent=indent, ensure_ascii=False))
        tracemalloc.start()
        texts = read_texts(file, most=100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert texts.total == len(rows)
        assert peak < 1 << 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["a", "b"', r"line 1: expected ','"),
        ('["a",\n"b",]', "line 2: Expecting value"),
        ('["a" "b"]', r"line 1: expected ','"),
        ('["a"]\n["b"]', "line 2: more follows"),
        ('["' + "a" * (9 << 20) + '"]', "an entry of more than 4 MiB"),
        ("[" + "[" * 50_000, "nested too deeply"),
        ('["a", 12' + " " * 3_000_000 + "3]", r"expected ','"),
        ('["a", 1e999999999, ' + "9" * 5_000 + "]", "Exceeds the limit|not a text"),
    ],
)
def test_a_broken_list_gets_one_line(tmp_path, content, message):
    with pytest.raises(AtlasError, match=message) as caught:
        read_texts(write(tmp_path, "a.json", content))
    assert "\n" not in str(caught.value)


def test_a_list_may_be_cut_anywhere_by_the_pieces_it_is_read_in(tmp_path, monkeypatch):
    values = ["é" * 7, 'a\\"b', "  ", "😀", "x" * 40] * 9
    for size in range(1, 30):
        monkeypatch.setattr(query.models.texts, "_PIECE", size)
        file = write(tmp_path, "a.json", json.dumps(values, indent=size % 3, ensure_ascii=size % 2 == 0))
        assert read_texts(file).texts == tuple(value.strip() for value in values if value.strip())


def test_all_texts_that_are_kept_take_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(query.models.texts, "_MOST_KEPT", 1 << 20)
    texts = read_texts(write(tmp_path, "a.txt", ("x" * 9_999 + "\n") * 1_000))
    assert 50 <= len(texts) <= 105
    assert texts.total == 1_000
    assert "evenly spaced" in texts.notes[0]


def test_a_long_text_is_cut_in_every_kind_of_file(tmp_path):
    long = "word " * 100_000
    for file in (
        write(tmp_path, "a.txt", long),
        write(tmp_path, "a.csv", f'text,label\n"{long}",1\n'),
        write(tmp_path, "a.json", json.dumps([long])),
        parquet(tmp_path, {"text": [long]}),
    ):
        texts = read_texts(file)
        assert [len(text) for text in texts.texts] == [100_000], file
        assert texts.notes == (f"1 long text of {file} was cut after 100,000 characters",)


def test_a_parquet_file_of_a_kilobyte_does_not_take_gigabytes(tmp_path):
    """A text of 4 MiB in each of 4,000 rows, which a dictionary holds once: 16 GiB, if each row had a copy."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 4_000, pa.int32()), pa.array(["x" * (4 << 20)]))
    for is_known, compression in ((True, "zstd"), (False, "snappy")):  # as a dictionary to the reader, or as strings
        file = tmp_path / f"{compression}.parquet"
        pyarrow.parquet.write_table(
            pa.table({"text": column}), file, compression=compression, store_schema=is_known,
            dictionary_pagesize_limit=1 << 30,
        )  # fmt: skip
        before = pa.default_memory_pool().max_memory()
        texts = read_texts(file, most=10)
        assert texts.total == 4_000
        assert pa.default_memory_pool().max_memory() - before < 1 << 28


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "it is a pipe"), ("", "it is a folder"), ("none", "There is no file")):
        with pytest.raises(AtlasError, match=message):
            read_texts(tmp_path / name)


def test_a_file_of_any_bytes_is_read_or_refused(tmp_path):
    draw = random.Random(0)
    parquet(tmp_path, {"text": list(THREE) * 50})
    intact = (tmp_path / "a.parquet").read_bytes()
    for _ in range(60):
        broken = bytearray(intact)
        for _ in range(draw.randint(1, 6)):
            broken[draw.randrange(4, len(broken))] = draw.randrange(256)
        with suppress(AtlasError):
            read_texts(write(tmp_path, "a.parquet", bytes(broken)))


@pytest.mark.parametrize("command", ["ask", "trace"])
def test_the_page_and_the_help_say_what_is_left_out(command):
    """Every limit of the code by its number."""
    most = {"ask": (ask.MOST_TEXTS, ask.MOST_TEXTS_OF_SHARES), "trace": (query.models.texts.MOST_TEXTS,)}[command]
    help_text = CliRunner().invoke(main, [command, "--help"], env={"COLUMNS": "200"}).output
    document = (
        (ROOT / "docs" / "guide" / f"{command}.md")
        .read_text(encoding="utf-8")
        .partition("## Which texts are left out")[2]
    )
    for number in most:
        assert f"{number:,}" in document
        assert f"{number:,}" in help_text
    assert f"{query.models.texts.LONGEST_TEXT:,}" in document
    for words in (help_text, document):
        for phrase in ("half of a surrogate pair", "tenth", "evenly spaced"):
            assert phrase in " ".join(words.split())

"""Files of a foreign atlas changed in all ways, with new checksums where they carry one, and what then happens.

Whatever is done to a file, the atlas opens, or is refused in one sentence: no crash, no traceback, no hang, no memory
beyond bounds. As a command, over an atlas that is copied first: python -m tests.opening.fuzz read|use ATLAS COUNT [KIND…]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError

SECONDS = 60  # of processor time
MEMORY = 3 << 30

HOSTILE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 2**31,
    lambda: 2**63,
    lambda: 10**400,
    lambda: 1e308,
    lambda: -0.5,
    lambda: float("nan"),
    lambda: float("-inf"),
    lambda: "",
    lambda: "x" * 100_000,
    lambda: "a\0b",
    lambda: "\ud800",
    lambda: "\x1b[2J\n",
    lambda: "../../../etc/passwd",
    lambda: "0001-01-01T00:00:00+23:00",
    lambda: "9999-12-31T23:59:59-23:00",
    lambda: [],
    lambda: {},
    lambda: [None],
    lambda: {"": {}},
    lambda: [[1, "a"], {"b": None}],
    lambda: list(range(70_000)),
    lambda: json.loads("[" * 400 + "]" * 400),
]


def bent_bytes(content: bytes, chance: random.Random) -> bytes:
    """Cut short, lengthened, or with some of its bytes altered, left out, doubled or moved."""
    start = chance.randrange(len(content) + 1)
    stop = min(len(content), start + chance.choice((1, 2, 8, 64, 4096)))
    some = content[start:stop]
    return chance.choice(
        (
            lambda: content[:start],
            lambda: content + chance.randbytes(chance.choice((1, 100, 5000))),
            lambda: content[:start] + chance.randbytes(len(some)) + content[stop:],
            lambda: content[:start] + bytes(len(some)) + content[stop:],
            lambda: content[:start] + content[stop:],
            lambda: content[:stop] + some + content[stop:],
            lambda: content[:start] + bytes(byte ^ (1 << chance.randrange(8)) for byte in some) + content[stop:],
            lambda: b"",
        )
    )()


def bent_value(value: Any, chance: random.Random) -> Any:
    """The same JSON with one value, anywhere in it, that does not belong there, or one key more or less."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(HOSTILE)()
    if isinstance(value, dict):
        key = chance.choice(list(value))
        how = chance.random()
        if how < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        if how < 0.15:
            return {**value, chance.choice(("", "x" * 1000, "\ud800", "__metadata__")): chance.choice(HOSTILE)()}
        return {**value, key: bent_value(value[key], chance)}
    index = chance.randrange(len(value))
    how = chance.random()
    if how < 0.1:
        return value[:index] + value[index + 1 :]
    if how < 0.2:
        return value * chance.choice((2, 50))
    return [*value[:index], bent_value(value[index], chance), *value[index + 1 :]]


def bent_object(content: bytes, chance: random.Random) -> bytes:
    """Of sealed objects, one a line, one that is bent and sealed again."""
    from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

    lines = content.split(b"\n")
    index = chance.choice([number for number, line in enumerate(lines) if line])
    value = parse_checksummed(lines[index])
    value.pop("sum", None)
    inner = bent_value(value, chance)
    if not isinstance(inner, dict) or not inner:
        inner = {"kind": inner}
    lines[index] = add_checksum(json.dumps(inner, separators=(",", ":")))
    return b"\n".join(lines)


def bent_safetensors(content: bytes, chance: random.Random) -> bytes:
    """Its header, or what is told in its notes, bent, under a checksum that fits where one can be made."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    notes = header["__metadata__"]
    reply = next(name for name in ("record", "profile", "base") if name in notes)
    if chance.random() < 0.75:
        inner = bent_value(json.loads(notes[reply]), chance)
        notes[reply] = json.dumps(inner, sort_keys=reply != "base" and isinstance(inner, dict), separators=(",", ":"))
    else:
        name = chance.choice([key for key in header if key != "__metadata__"])
        header[name] = bent_value(header[name], chance)
    return _sealed_safetensors(header, data, reply)


def _sealed_safetensors(header: dict[str, Any], data: bytes, message: str) -> bytes:
    import hashlib

    from safetensors.numpy import load

    from indexer.records.identity import canonical_json
    from indexer.storage.arrays import checksum

    def written() -> bytes:
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + data

    notes = header["__metadata__"]
    if message == "base":
        notes["sha256"] = "0" * 64
        notes["sha256"] = hashlib.sha256(written()).hexdigest()
    elif message == "profile":
        with contextlib.suppress(Exception):
            inner = json.loads(notes[message])
            inner["checksum"] = checksum(canonical_json(inner["header"]), load(written()))
            notes[message] = canonical_json(inner)
    else:
        with contextlib.suppress(Exception):
            notes["checksum"] = checksum(notes[message], load(written()))
    return written()


def bend_database(path: Path, chance: random.Random) -> None:
    """One column of one table, of a few rows or of all, set to something that its type can hold."""
    import duckdb

    with duckdb.connect(str(path)) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() JOIN duckdb_tables() USING (table_name)"
        ).fetchall()
        table, column, kind = chance.choice(sorted(columns))
        literals = {
            "VARCHAR": ["''", "repeat('x', 100000)", "chr(27) || '[2J'", "'../../x'", "chr(0) || 'a'", "'{{'"],
            "JSON": ["'[[[[[[]]]]]]'", "'7'", "'null'", "repeat('[', 900) || repeat(']', 900)"],
            "BOOLEAN": ["true", "false"],
            "TIMESTAMP": ["TIMESTAMP '0001-01-01'", "'infinity'::TIMESTAMP", "TIMESTAMP '290000-01-01'"],
        }
        numbers = ["0", "-1", "127", "32767", "2147483647", "9223372036854775807", "'nan'::DOUBLE", "1e308"]
        value = chance.choice([*literals.get(kind, numbers), "NULL", "[]", "[NULL]", "{'a': 1}"])
        condition = chance.choice(("", "WHERE random() < 0.5", "WHERE rowid = 0"))
        with contextlib.suppress(duckdb.Error):
            connection.execute(f'UPDATE "{table}" SET "{column}" = TRY_CAST(({value}) AS {kind}) {condition}')
            if chance.random() < 0.2:
                connection.execute(f'DELETE FROM "{table}" {condition}')


def bend_listing(path: Path, chance: random.Random) -> None:
    """One value of one row set to something that SQLite can hold, under a checksum that fits."""
    import sqlite3

    from indexer.storage.small_database import row_checksum

    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        filled = [name for name in tables if connection.execute(f"SELECT 1 FROM {name}").fetchone()]
        table = chance.choice(filled)
        rows = connection.execute(f"SELECT rowid, * FROM {table}")
        names = [column[0] for column in rows.description][1:-1]
        rowid, *values, _ = chance.choice(rows.fetchall())
        index = chance.randrange(len(values))
        with contextlib.suppress(TypeError, ValueError):
            values[index] = json.dumps(bent_value(json.loads(values[index]), chance))
        if chance.random() < 0.5:
            values[index] = chance.choice(
                (None, -1, 1 << 62, 0.5, b"\xff", "", "x" * 1000, "../x", "[", "\x1b[2J", "9999")
            )
        changes = ", ".join(f"{name} = ?" for name in names)
        with contextlib.suppress(sqlite3.Error, UnicodeEncodeError):
            statement = f"UPDATE {table} SET {changes}, checksum = ? WHERE rowid = ?"
            connection.execute(statement, (*values, row_checksum(values), rowid))


def bend(atlas: AtlasFolder, kind: str, path: Path, chance: random.Random) -> None:
    """Bend one file of the atlas; its database's checksum fits again, as its maker can see to it."""
    from indexer.publish.staging import note_checksum

    content = path.read_bytes()
    if chance.random() < 0.25:
        path.write_bytes(bent_bytes(content, chance))
    elif kind == "database":
        bend_database(path, chance)
    elif path.suffix == ".safetensors":
        path.write_bytes(bent_safetensors(content, chance))
    elif path.suffix == ".sqlite":
        bend_listing(path, chance)
    elif path.suffix == ".json":
        path.write_bytes(bent_object(content, chance))
    else:
        path.write_bytes(bent_bytes(content, chance))
    if kind == "database":
        atlas.checksums.unlink(missing_ok=True)
        note_checksum(atlas, path)


def read(atlas: AtlasFolder, kind: str, path: Path) -> None:
    """What reads a file of this kind alone, without the others. Raises what is not a sentence."""
    from indexer.deltas.stored_base import StoredBase
    from indexer.listing.listing import Listing
    from indexer.profiles.store import read_profile
    from indexer.publish.staging import damage
    from indexer.publish.stored_answers import ANSWERS, read_answers
    from indexer.records.record import read_identity, read_record
    from indexer.records.store import RecordStore
    from tests.tiny_hub import BASE

    def base() -> None:
        stored = StoredBase(path)
        stored.check(recheck=True)
        assert [stored.layout.matrices, stored.norms, stored.file_hashes]

    def identity() -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # as it says
            read_identity(path)

    ways: dict[str, list[Callable[[], object]]] = {
        "listing": [
            lambda: Listing(path).models(),
            lambda: Listing(path).rejected_rows(),
            lambda: Listing(path).problems(),
            lambda: Listing(path).as_lines(),
            lambda: [read_answers(kind, atlas, BASE) for kind in ANSWERS],
        ],
        "base": [base],
        "record": [lambda: read_record(path), identity],
        "outcome": [lambda: RecordStore(atlas).checked_failure(path.stem)],
        "profile": [lambda: read_profile(path)],
        "checksums": [lambda: damage(atlas)],
    }
    _run_all(ways.get(kind, []))


def use(atlas: AtlasFolder, kind: str, path: Path) -> None:
    """All that a person does first with an atlas that came from somebody else. Raises what is not a sentence."""
    from indexer.upkeep.maintenance import rebuild, status
    from indexer.upkeep.verification import verify
    from query import Atlas
    from tests.tiny_hub import BASE

    def query_all() -> None:
        with Atlas(atlas.root) as opened:
            opened.similar("ann/glue-0")
            for table in ("models", "failures", "duplicates", "lineage", "depth_of_models", "indexes"):
                opened.connection.execute(f"FROM {table}").fetchall()
            opened.rank(BASE)

    def rebuilt() -> None:
        with atlas.locked("index rebuild"):
            rebuild(atlas)

    _run_all([query_all, lambda: status(atlas), lambda: verify(atlas), rebuilt, query_all, lambda: verify(atlas)])


def _run_all(steps: list[Callable[[], object]]) -> None:
    for step in steps:
        try:
            step()
        except AtlasError as error:
            if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", str(error)) or len(str(error)) > 2000:
                raise ValueError(f"no sentence: {str(error)[:300]!r}") from error


def outcomes(source: Path, kind: str, seeds: range, way: Callable[[AtlasFolder, str, Path], None]) -> dict[int, str]:
    """By seed what becomes of a copy of the atlas with a file of this kind bent: ``fine``, or what was wrong with it.

    In a process of its own, and another one for those after a seed that killed it.
    """
    outcome_of_seed: dict[int, str] = {}
    while left := [seed for seed in seeds if seed not in outcome_of_seed]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _write_outcomes(source, kind, left, way, writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as answers:
            outcome_of_seed |= dict(json.loads(line) for line in answers)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed = next(seed for seed in left if seed not in outcome_of_seed)
            outcome_of_seed[killed] = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return outcome_of_seed


def _write_outcomes(
    source: Path, kind: str, seeds: list[int], way: Callable[[AtlasFolder, str, Path], None], writing: int
) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # what libraries print is not what is asked
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            answer = json.dumps([seed, _outcome(source, kind, seed, way)]) + "\n"
            os.write(writing, answer.encode())
    finally:
        os._exit(0)  # whatever happens: a child that went on would run the other tests, and fork in turn


def _outcome(source: Path, kind: str, seed: int, way: Callable[[AtlasFolder, str, Path], None]) -> str:
    from tests.flips import files_by_kind

    with tempfile.TemporaryDirectory() as folder:
        atlas = AtlasFolder(shutil.copytree(source, Path(folder) / "atlas"))
        chance = random.Random(f"{kind} {seed}")
        path = chance.choice(files_by_kind(atlas)[kind])
        try:
            bend(atlas, kind, path, chance)
            way(atlas, kind, path)
        except BaseException:
            return traceback.format_exc()[-3000:]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return f"memory: {used >> 20} MiB" if used > MEMORY else "fine"


def load() -> None:
    """Everything that a use needs is loaded before the first, so that each starts from there."""
    for name in (
        "duckdb",
        "pyarrow",
        "indexer.upkeep.maintenance",
        "indexer.upkeep.verification",
        "query.questions.rank.study",
    ):
        import_module(name)
    import_module("torch").set_num_threads(1)
    import_module("faiss").omp_set_num_threads(1)


def main() -> None:
    from tests.flips import files_by_kind

    way = {"read": read, "use": use}[sys.argv[1]]
    source, count = Path(sys.argv[2]), int(sys.argv[3])
    kinds = sys.argv[4:] or list(files_by_kind(AtlasFolder(source)))
    load()
    for kind in kinds:
        outcome_of_seed = outcomes(source, kind, range(count), way)
        counts = Counter(outcome_of_seed.values())
        for outcome in counts.keys() - {"fine"}:
            first = next(seed for seed in outcome_of_seed if outcome_of_seed[seed] == outcome)
            print(f"--- {kind} {first} ({counts[outcome]} times)\n{outcome}", flush=True)
        print(f"{kind}: {counts['fine']} of {count} fine", flush=True)


if __name__ == "__main__":
    main()

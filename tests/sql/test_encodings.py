"""A statement is UTF-8, whatever the locale; other bytes are refused in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from indexer.errors import AtlasError
from query.questions.sql import run_sql
from tests.atlas_builder import Model, write_atlas
from tests.conftest import ROOT
from tests.sql.conftest import check_condition

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
STRICT = {"PYTHONIOENCODING": "utf-8:strict"}  # as in every locale that is named, en_US.UTF-8 say

ASK = """
import sys, pathlib
from query.questions.sql import asked_condition, run_sql
found = run_sql(pathlib.Path(sys.argv[1]), sys.argv[2]).rows
print(ascii(found), len(asked_condition(pathlib.Path(sys.argv[1]), sys.argv[3]).model_ids()))
"""


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    return str(write_atlas(tmp_path_factory.mktemp("planted"), [Model("ann/one", np.ones(4))]))


def asked(*words: str | bytes, stdin: bytes = b"", **environment: str):
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        input=stdin,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("code", [0xDCFF, 0xDCC3, 0xD800])
def test_what_is_not_utf_8_is_refused(database, code):
    literal = f"'{chr(code)}'"
    with pytest.raises(AtlasError, match=r"^The statement is not UTF-8\."):
        run_sql(database, f"SELECT {literal}")
    with pytest.raises(AtlasError, match=r"^`where` is not UTF-8\."):
        check_condition(database, f"author = {literal}")


@pytest.mark.parametrize("environment", [ASCII, {}], ids=["C locale", "this locale"])
def test_accents_are_understood_in_every_locale(database, environment):
    done = asked("-c", ASK, str(database), "SELECT 'é日'".encode(), "author <> 'é'".encode(), **environment)
    assert (done.stdout, done.stderr) == (b"[['\\xe9\\u65e5']] 1000\n", b"")


@pytest.mark.slow
@pytest.mark.parametrize("environment", [ASCII, STRICT, {}], ids=["C locale", "strict", "this locale"])
@pytest.mark.parametrize(("accent", "message"), [("é".encode(), b"1"), (b"\xff", b"is not UTF-8.")])
def test_a_statement_from_stdin_is_utf_8(atlas, environment, accent, message):
    statement = b"SELECT length('%b') AS characters" % accent
    done = asked("-m", "query", "sql", "-", "--format", "csv", "--atlas", atlas, stdin=statement, **environment)
    assert message in done.stdout + done.stderr
    assert done.returncode == int(message != b"1")
    assert (done.stdout + done.stderr).count(b"\n") <= 2

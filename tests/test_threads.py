"""One Atlas asked by many threads answers as it answers one, also while the atlas is published anew."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pytest

from indexer.database.connection import translated_errors
from indexer.errors import AtlasError
from indexer.shared_state import SharedChange, ignored_warnings, one_blas_thread
from query import Atlas
from query.models.reader import AtlasReader
from tests.atlas_builder import Model, write_atlas

THREADS = 8
AUTHORS = 5


def models(count=20, downloads=0):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(3, 8))
    return [
        Model(
            f"author{one % AUTHORS}/model-{one}",
            centres[one % 3] + 0.3 * rng.normal(size=8),
            datasets=() if one == 7 else (f"org/data-{one % 3}",),
            author=f"author{one % AUTHORS}",
            downloads=downloads + one,
        )
        for one in range(count)
    ]


@pytest.fixture
def threaded(tmp_path):
    return write_atlas(tmp_path / "atlas", models())


def digits(value):
    """Numbers to five digits: the number of BLAS's threads is a matter of the process and changes the last ones."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: digits(one) for key, one in value.items()}
    return [digits(one) for one in value] if isinstance(value, list | tuple) else value


def quick_questions(names):
    asked = [("bases", lambda atlas: atlas.bases()), ("datasets", lambda atlas: atlas.datasets().to_rows())]
    asked += [("length", len), ("names", list), ("summary", repr)]
    for name in names:
        asked += [
            (("models", name), lambda atlas, name=name: atlas.models(name).to_rows()),
            (("show", name), lambda atlas, name=name: atlas.show(name).to_dict()),
            (("similar", name), lambda atlas, name=name: atlas.similar(name, k=4).to_rows()),
            (("others", name), lambda atlas, name=name: atlas.similar(name, k=4, other_authors=True).to_rows()),
            (("layers", name), lambda atlas, name=name: atlas.layers(name).to_dict()),
            (
                ("rows", name),
                lambda atlas, name=name: atlas.rows("SELECT model, downloads FROM models WHERE model = ?", [name]),
            ),
        ]
    return asked


def slow_questions(names):
    asked = [
        ("purity", lambda atlas: atlas.purity(draws=20).to_dict()),
        ("clusters", lambda atlas: atlas.clusters(draws=20).to_dict()),
        ("vectors", lambda atlas: atlas.vectors().matrix.tolist()),
        ("sql", lambda atlas: atlas.sql("SELECT model, downloads FROM models ORDER BY model").rows),
        ("map", lambda atlas: atlas.map(method="pca").to_rows()),
    ]
    for name in names[:4]:
        asked += [
            (("predict", name), lambda atlas, name=name: atlas.predict(name).to_rows()),
            (("where", name), lambda atlas, name=name: atlas.similar(name, k=3, where="downloads % 2 = 0").to_rows()),
        ]
    return asked


def mixed(atlas, asked, answers, each, on_turn=lambda _: None):
    """Ask from THREADS threads ``each`` questions; what was not one of the ``answers``."""
    wrong = []

    def ask(thread):
        for turn in range(each):
            if thread == 0:
                on_turn(turn)
            name, question = asked[(thread * 7 + turn * (thread + 1)) % len(asked)]
            try:
                answer = digits(question(atlas))
            except Exception as error:
                wrong.append((name, f"{type(error).__name__}: {error}"))
            else:
                if not any(answer == one[name] for one in answers):
                    wrong.append((name, answer))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(ask, range(THREADS)))
    return wrong


def alone(root, asked):
    with Atlas(root) as atlas:
        return {name: digits(question(atlas)) for name, question in asked}


def publish(root, other):
    """Put another atlas in place of one, as a publish does: files beside the old ones, and the database last."""
    for path in other.glob("*.faiss"):
        if not (root / path.name).exists():
            os.link(path, root / path.name)
    os.replace(other / "atlas.duckdb", root / "atlas.duckdb")


def test_threads_get_the_answers_of_one_thread(threaded):
    with Atlas(threaded) as atlas:
        asked = quick_questions(sorted(atlas))
        expected = alone(threaded, asked)
        assert mixed(atlas, asked, [expected], 12) == []


@pytest.mark.parametrize(
    "turns", [pytest.param(100, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.study)]
)
@pytest.mark.timeout(1800)
def test_threads_get_the_answers_of_one_thread_through_a_publish(threaded, tmp_path, turns):
    other = write_atlas(tmp_path / "other", models(downloads=1000))
    with Atlas(threaded) as atlas:
        names = sorted(atlas)
    asked = quick_questions(names) * 6 + slow_questions(names)
    before, after = alone(threaded, asked), alone(other, asked)
    assert before["sql"] != after["sql"]
    after["summary"] = before["summary"]  # it names the folder

    with Atlas(threaded) as atlas:

        def on_turn(turn):
            if turn == turns // 4:
                publish(threaded, other)
            if turn > turns // 4 and turn % (turns // 7) == 0:
                atlas.refresh()

        wrong = [one for one in mixed(atlas, asked, [before, after], turns, on_turn) if one[0] != "summary"]
        assert wrong == []
        assert digits(atlas.sql("SELECT model, downloads FROM models ORDER BY model").rows) == after["sql"]


def test_a_question_sees_one_generation_to_its_end(threaded, tmp_path):
    other = write_atlas(tmp_path / "other", models(downloads=1000))
    with Atlas(threaded) as atlas:

        def question(reader):
            first = reader.rows("SELECT min(downloads) AS least FROM models")[0]["least"]
            publish(threaded, other)
            atlas.refresh()
            assert atlas.rows("SELECT min(downloads) AS least FROM models") == [{"least": 1000}]
            return first, reader.rows("SELECT min(downloads) AS least FROM models")[0]["least"]

        assert atlas._generations.asked(question) == (0, 0)
        assert not atlas.is_outdated


def test_sql_and_conditions_are_of_the_generation_that_is_open(threaded, tmp_path):
    other = write_atlas(tmp_path / "other", models(downloads=1000))
    statement = "SELECT min(downloads) AS least FROM models"
    with Atlas(threaded) as atlas:
        name = next(iter(atlas))
        publish(threaded, other)
        assert atlas.sql(statement).rows == [[0]]
        assert len(atlas.similar(name, where="downloads < 1000")) == 10
        atlas.refresh()
        assert atlas.sql(statement).rows == [[1000]]
        assert len(atlas.similar(name, where="downloads < 1000")) == 0


def test_an_atlas_that_is_closed_lets_questions_end(threaded):
    atlas, started, may_end = Atlas(threaded), threading.Event(), threading.Event()

    def question(reader):
        started.set()
        may_end.wait(60)
        return len(reader.rows("SELECT model FROM models"))

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(atlas._generations.asked, question)
        started.wait(60)
        atlas.close()
        with pytest.raises(AtlasError, match="closed"):
            atlas.bases()
        may_end.set()
        assert asked.result(60) == 20
    atlas.refresh()
    assert len(atlas) == 20
    atlas.close()


def test_statements_of_two_threads_have_a_result_each(threaded):
    with AtlasReader(threaded) as reader:
        first = reader.connection.execute("SELECT model FROM models ORDER BY model")
        second = reader.connection.execute("SELECT downloads FROM models ORDER BY downloads")
        assert len(first.fetchall()) == 20
        assert second.fetchall()[0] == (0,)
        assert first.description[0][0] == "model"
        for cursors in (reader.connection.cursor(),):
            assert cursors[0].execute("SELECT count(*) FROM nearest('author0/model-0')").fetchall()
            cursors[1](cursors[0])


def test_vectors_that_a_publish_deleted_are_those_of_the_next_generation(threaded, tmp_path):
    other = write_atlas(tmp_path / "other", models(24))
    with Atlas(threaded) as atlas:
        publish(threaded, other)
        for path in threaded.glob("*.faiss"):
            path.unlink()
        for path in other.glob("*.faiss"):
            os.link(path, threaded / path.name)
        assert len(atlas.vectors().models) == 24
        assert len(atlas) == 24


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_atlas_is_not_copied_and_says_so(threaded, how):
    with Atlas(threaded) as atlas, pytest.raises(AtlasError, match="each process by its path") as caught:
        how(atlas)
    assert str(threaded) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_opens_the_atlas_by_itself(threaded):
    with Atlas(threaded) as atlas:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the process has threads
            child = os.fork()
        if not child:
            os._exit(0 if len(atlas) == 20 and len(atlas.similar("author0/model-0", k=2)) == 2 else 1)
        until = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.05)
        if not ended[0]:
            os.kill(child, 9)
        assert ended == (child, 0)
        assert len(atlas) == 20


@pytest.mark.parametrize(
    "error",
    [
        duckdb.TransactionException("TransactionContext Error: Conflict"),
        duckdb.ConnectionException("Connection Error: a result is pending"),
        duckdb.IOException('IO Error: Could not read from file "x": Resource temporarily unavailable'),
        duckdb.IOException('IO Error: Cannot open file "x": Too many open files'),
    ],
)
def test_what_is_busy_is_not_called_damaged(tmp_path, error):
    with pytest.raises(AtlasError) as caught, translated_errors(tmp_path / "atlas.duckdb"):
        raise error
    assert "damaged" not in str(caught.value)
    assert "Try again" in str(caught.value)


def test_a_shared_change_is_undone_by_the_last_block():
    made = []

    class Change:
        def __enter__(self):
            made.append("made")

        def __exit__(self, *_):
            made.append("undone")

    change = SharedChange(Change)
    first, second = change(), change()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert made == ["made"]
    second.__exit__(None, None, None)
    assert made == ["made", "undone"]


def test_overlapping_blocks_leave_warnings_and_blas_as_they_were():
    from threadpoolctl import threadpool_info

    def threads():
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    filters, before = list(warnings.filters), threads()
    blocks = [ignored_warnings("a"), one_blas_thread(), ignored_warnings("b"), one_blas_thread()]
    for block in blocks:
        block.__enter__()
    assert set(threads()) == {1}
    for block in blocks:  # in the order in which they began
        block.__exit__(None, None, None)
    assert list(warnings.filters) == filters
    assert threads() == before


def test_an_atlas_that_this_process_has_open_for_writing_is_read_from_a_copy(threaded):
    with duckdb.connect(str(threaded / "atlas.duckdb")) as held:
        held.execute("SELECT 1")
        with Atlas(threaded) as atlas:
            assert "private copy" in atlas.notes[0]
            assert len(atlas) == 20

"""The question: planted texts find their models, others find none; and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import query.questions.ask.ask
from indexer.errors import AtlasError, BadArgument
from query import Atlas
from query.faces.cli import main
from query.faces.serve.tools import Tools
from query.models.population import read_population
from query.models.reader import AtlasReader
from query.models.texts import Texts
from query.questions.ask.evidence import Features, Reader
from query.questions.ask.models import Candidates
from query.questions.ask.scoring import null_of
from scripts.family.plan import load_plan
from tests.tiny_hub import DATASETS

BASE = "org/tiny-base"
ROWS = 64


class Planted:
    """Features of texts without a base: a text that names a data set looks like the models of that data set."""

    stored_null = None

    def __init__(self, atlas, base, own_texts=None, device="cpu"):
        self.population = read_population(atlas, base)
        self.random = np.random.default_rng(0)

    def reference(self) -> Features:
        length = self.population.vectors.shape[1]
        return Features(self._unit(self.random.normal(size=(40, length))), np.full((40, ROWS), 1 / ROWS, np.float32))

    def null(self):
        return self.stored_null

    def keep_null(self, null):
        self.stored_null = null

    def pooled_rates(self):
        return np.full(ROWS, 1 / ROWS, np.float32)

    def features_of(self, texts) -> Features:
        drawn = self.random.normal(size=self.population.vectors.shape[1]) * 0.05
        for row, datasets in enumerate(self.population.datasets):
            if any(name in texts.texts[0] for name in datasets):
                drawn = drawn + self.population.vectors[row]
        return Features(self._unit(drawn[None, :]), np.full((1, ROWS), 1 / ROWS, np.float32))

    def _unit(self, rows) -> np.ndarray:
        blocks = rows.reshape(len(rows), self.population.blocks, -1)
        return (blocks / np.linalg.norm(blocks, axis=2, keepdims=True)).reshape(len(rows), -1).astype(np.float32)


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(query.questions.ask.ask, "Reader", Planted)


@pytest.fixture
def files(tmp_path):
    for name in (*DATASETS, "nothing"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(f"this is {name}\n" * 8)
    return tmp_path / "texts"


def test_the_models_of_a_data_set_stand_out(made, planted, files):
    with Atlas(made) as atlas:
        answer = atlas.ask(files / "imdb.txt", k=4)
        assert {row.model.split("/")[1].split("-")[0] for row in answer[:3]} == {"imdb"}
        assert answer.searched == 9
        assert answer.standing_out >= 3
        assert "stand out as tuned on texts like those of" in answer.headline
        assert [row.rank for row in answer] == [1, 2, 3, 4]
        assert answer[0].expected_by_chance == pytest.approx(9 * answer[0].p_value)
        assert len(atlas.ask(files / "imdb.txt", where="author = 'ann'")) == 3


def test_models_of_all_bases_are_in_one_list(made, planted, files, monkeypatch):
    def of_two(reader):
        return [BASE, "org/another"]

    with Atlas(made) as atlas:
        alone = atlas.ask(files / "imdb.txt", k=8)
        assert "base" not in alone.to_rows()[0]
        together = atlas.ask(files / "imdb.txt", k=8, all_bases=True)
        assert [row.model for row in together.models] == [row.model for row in alone.models]
        assert {row.base for row in together.models} == {BASE}
        monkeypatch.setattr(AtlasReader, "bases", of_two)
        with_broken = atlas.ask(files / "imdb.txt", k=8, all_bases=True)
        assert [row.model for row in with_broken.models] == [row.model for row in alone.models]
        assert any(note.startswith("org/another is left out: ") for note in with_broken.notes)
        with pytest.raises(BadArgument, match="`all_bases` goes without `base`"):
            atlas.ask(files / "imdb.txt", base=BASE, all_bases=True)


def test_no_model_stands_out(made, planted, files):
    with Atlas(made) as atlas:
        answer = atlas.ask(files / "nothing.txt")
    assert answer.standing_out == 0
    assert answer.headline.startswith("No model stands out")
    assert len(answer) == 9


def test_which_of_these_texts(made, planted, files):
    with Atlas(made) as atlas:
        answer = atlas.ask(model="ann/squad-0", among=[files])
        assert answer.answer == str(files / "squad.txt")
        assert "was probably tuned on texts like those of squad.txt." in answer.headline
        assert answer[0].file == answer.answer
        assert [row.is_answer for row in answer] == [True, False, False, False]
        (files / "other").mkdir()
        (files / "other" / "squad.txt").write_text("this is nothing\n" * 8)
        same_names = atlas.ask(model="ann/squad-0", among=[files, files / "other"])
        assert f"like those of {files / 'squad.txt'}." in same_names.headline
        none = atlas.ask(model="ann/squad-0", among=[files / "nothing.txt"])
    assert none.answer is None
    assert none.headline.startswith("No match")


def test_later_questions_compute_only_what_is_asked(made, planted, files, monkeypatch):
    """The scores of the reference are computed once; a model that is read for the question is compared anew."""
    stored, counted = {}, []
    monkeypatch.setattr(Planted, "null", lambda self: stored.get("null"))
    monkeypatch.setattr(Planted, "keep_null", lambda self, null: stored.update(null=null))
    by_vectors = Candidates.by_vectors
    monkeypatch.setattr(
        Candidates,
        "by_vectors",
        lambda self, groups: counted.append([len(features.blocks) for features in groups]) or by_vectors(self, groups),
    )
    with Atlas(made) as atlas:
        first = atlas.ask(files / "imdb.txt", k=4)
        again = atlas.ask(files / "imdb.txt", k=4)
        assert counted == [[1, 40], [1]]
        assert list(again) == list(first)  # to the last digit
        stored["null"] = replace(stored["null"], means=stored["null"].means[:, :-1])  # of another number of models
        atlas.ask(files / "imdb.txt")
        assert counted[2:] == [[1, 40]]


def test_scores_of_the_reference_are_of_one_publish(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Reader, "_path", lambda self, name: tmp_path / name)
    draw = np.random.default_rng(0)
    null = null_of([draw.random((12, 9)), np.where(np.arange(9) < 6, draw.random((12, 9)), np.nan)], [0.7, 0.3])
    with Atlas(made) as atlas:
        reader = Reader(atlas, BASE)
        assert reader.null() is None
        reader.keep_null(null)
        stored_null = reader.null()
        assert stored_null is not None
        assert {name: array.tobytes() for name, array in stored_null.arrays().items()} == {
            name: array.tobytes() for name, array in null.arrays().items()
        }
        other = Reader(atlas, BASE)
        monkeypatch.setattr(AtlasReader, "state", property(lambda self: "another publish"))
        assert Reader(atlas, BASE).null() is None
        assert other.null() is not None
        monkeypatch.setattr(AtlasReader, "state", property(lambda self: None))
        Reader(atlas, BASE).keep_null(null)
        assert Reader(atlas, BASE).null() is None
    assert len(list(tmp_path.iterdir())) == 1


def test_the_command(made, planted, files):
    def ask(*words):
        result = CliRunner().invoke(main, ["ask", *map(str, words), "--atlas", str(made)])
        assert result.exit_code == 0, result.stderr
        return result

    rows = json.loads(ask(files / "glue.txt", "-k", "2", "--json").stdout)
    assert list(rows[0]) == ["rank", "model", "score", "p_value", "expected_by_chance", "by_vocabulary", "by_vectors",
                             "datasets", "author", "relation"]  # fmt: skip
    assert "stand out" in ask(files / "glue.txt").stdout
    assert "No model stands out" in ask(files / "nothing.txt").stdout
    answer = json.loads(ask("--model", "ann/glue-0", "--among", files, "--json").stdout)
    assert answer["answer"] == str(files / "glue.txt")
    several = json.loads(ask("--model", "ann/glue-0", "--among", *sorted(files.iterdir()), "--json").stdout)
    assert (several["answer"], len(several["files"])) == (answer["answer"], len(answer["files"]))
    assert list(answer["files"][0]) == ["rank", "file", "score", "p_value", "by_vocabulary", "by_vectors", "texts",
                                        "is_answer", "share", "share_low", "share_high"]  # fmt: skip
    assert "holds 1 text, which says little" in ask(files / "glue.txt").stderr  # eight times the same


def test_texts_may_be_given_as_a_list(made, planted):
    texts = ["this is imdb", "", "this is imdb  "] * 4
    with Atlas(made) as atlas:
        likely = atlas.ask(texts, 3)
        assert likely.texts == 8
        assert "stand out as tuned on texts like these" in likely.headline
        assert likely.to_df().shape == (3, 10)
        with pytest.raises(AtlasError, match="There is no text"):
            atlas.ask([" "])
    answer, error = Tools(made).answer("ask", {"texts": texts, "k": 3})
    assert error == ""
    assert answer is not None
    assert [row["model"] for row in answer["models"]] == [row.model for row in likely]
    assert answer["standing_out"] == likely.standing_out


def test_wrong_questions_have_one_line(made, tmp_path, files):
    empty = tmp_path / "empty"
    empty.mkdir()
    with Atlas(made) as atlas:
        for words in ({}, {"file": "a", "model": "b"}, {"model": "b"}, {"file": "a", "among": ["b"]}):
            with pytest.raises(BadArgument, match="Give a file, or a"):
                atlas.ask(**words)
        with pytest.raises(AtlasError, match="holds no files"):
            atlas.ask(model="ann/glue-0", among=[empty])
        with pytest.raises(AtlasError, match="There is no file"):
            atlas.ask(tmp_path / "none.txt")
        with pytest.raises(BadArgument, match="at least 1"):
            atlas.ask(files / "glue.txt", 0)
    result = CliRunner().invoke(main, ["ask", "--model", "x", "--atlas", str(made)])
    assert result.exit_code == 2
    assert "use --model with --among FILE" in result.stderr


def test_texts_without_a_known_token_have_one_line(made, tmp_path, monkeypatch):
    class Base:
        def encode(self, texts):
            return [[0, 3, 2] for _ in texts]

        def has_tokens(self, encoded):
            return False

    monkeypatch.setattr(Reader, "_path", lambda self, name: tmp_path / name)
    monkeypatch.setattr(Reader, "_model", lambda self: Base())
    with Atlas(made) as atlas:
        with pytest.raises(AtlasError, match="has none of the tokens of the reference texts"):
            Reader(atlas, BASE).reference()
        monkeypatch.setattr(Reader, "_moments", lambda self: None)
        with pytest.raises(AtlasError, match=r"The vocabulary of org/tiny-base has none of the tokens of snow\.txt"):
            Reader(atlas, BASE).features_of(Texts("snow.txt", ("☃ ☄",), 1))


@pytest.mark.slow
def test_held_out_texts_of_a_family_find_its_models(built, family, tmp_path):
    """Every step with the base of the small family, once and from the cache; the file holds what nobody saw."""
    names = "LATIN SMALL LETTER {}, GREEK CAPITAL LETTER {}, CYRILLIC LETTER {}"
    letters = ["ALPHA", "BETA", "GAMMA", "DELTA WITH TONOS", "OMEGA", "SHORT I", "HARD SIGN", "YERU"]
    lines = [names.format(first, second, first) for first in letters for second in letters[:4]]
    (tmp_path / "names.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in lines))
    words = ("query", "ask", str(tmp_path / "names.jsonl"), "--field", "body", "--base", "tiny-roberta", "--json")
    first = built(*words)
    assert first.code == 0, first.err
    tuned_on = {run.model: run.dataset for run in load_plan("small").runs}
    assert tuned_on[first.json[0]["model"]] == "unicode/character-names"
    assert "through atlas-demo/tiny-roberta" in first.err
    again = built(*words)
    assert again.json == first.json
    assert "through" not in again.err

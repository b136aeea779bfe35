"""Which models a study of ranks counts, and what cannot be answered."""

from __future__ import annotations

from functools import partial

import pytest

from indexer.errors import AtlasError
from query import Atlas
from tests.database import execute
from tests.ranks.conftest import DEPTH, by_numpy, check, forget_spectra


def test_copies_unrelated_models_and_repeats_are_left_out_and_counted(atlas):
    study = atlas.rank("org/known")
    assert study.to_dict()["left_out"] == {
        "copies": 1,
        "untrained": 0,
        "unrelated": 1,
        "duplicates": 1,
        "checkpoints": 0,
        "sampled": 0,
        "without": 0,
    }
    assert "left out: 1 copy of the base, 1 unrelated to the base, 1 duplicate" in study.notes


@pytest.mark.parametrize(("relation", "models"), [("finetune", 4), ("adapter", 1), ("finetune, adapter", 5), (None, 5)])
def test_relations(atlas, relation, models):
    assert atlas.rank("org/known", relation=relation).models == models


def test_a_mean_is_never_taken_over_the_small_ranks_alone(atlas_copy):
    """cyd/three lacks spectra, and its ranks up to 8 are known: it does not count anywhere, not even there."""
    forget_spectra(atlas_copy, "model = 'cyd/three'")
    with Atlas(atlas_copy.root) as opened:
        study = opened.rank("org/known", relation="finetune")
        assert study.lacking == ("cyd/three",)
        assert study.models == 3
        assert study.families["feedforward2"].counts == (2, 2, 3, 3, 3, 3)
        assert study.families["key"].ranks == (4.5, 4.5, *[pytest.approx(14 / 3)] * 4)
        assert any("cyd/three" in note and "`build('org/known', spectra=True)`" in note for note in study.notes)
        view = opened.rows(
            "SELECT layer, models, rank_50 FROM rank_by_depth WHERE base = 'org/known' AND family = 'feedforward1' "
            "ORDER BY layer"
        )
    assert [row["rank_50"] for row in view] == [(layer + 1) ** 2 for layer in range(DEPTH)]


def test_models_are_not_selected_by_rank(atlas_copy):
    """Of two models without spectra one is known to the last rank and one is not: neither counts when bob/gpt does."""
    forget_spectra(atlas_copy, "model IN ('ann/gpt', 'dan/gpt-lora')")
    with Atlas(atlas_copy.root) as opened:
        assert opened.rank("org/gpt").models == 3  # while every rank is known
    execute(
        atlas_copy.database,
        "UPDATE deltas SET rank_50 = NULL WHERE layer = 2 AND family = 'query' "
        "AND model_id = (SELECT model_id FROM fine_tunes WHERE model = 'ann/gpt')",
    )
    with Atlas(atlas_copy.root) as opened:
        study = opened.rank("org/gpt")
    assert study.models == 1
    assert sorted(study.lacking) == ["ann/gpt", "dan/gpt-lora"]


def test_the_view_does_not_average_the_small_ranks_alone_either(atlas_copy):
    """key: ann/one 4, eve/frozen 5 (from layer 2 on), bob/two 5 and cyd/three 6, of which the last is not known."""
    forget_spectra(atlas_copy, "model IN ('bob/two', 'cyd/three')", ranks_above=5)
    with Atlas(atlas_copy.root) as opened:
        rows = opened.rows(
            "SELECT models, with_spectra, rank_50 FROM rank_by_depth "
            "WHERE base = 'org/known' AND family = 'key' AND layer = 3"
        )
    assert rows == [{"models": 4, "with_spectra": 3, "rank_50": 4.5}]  # dan/lora changes no key, and has spectra


def test_a_repeat_with_spectra_stands_in_for_its_first_upload_without(atlas_copy):
    with Atlas(atlas_copy.root) as opened:
        before = opened.rank("org/known")
    forget_spectra(atlas_copy, "model = 'ann/one'")
    with Atlas(atlas_copy.root) as opened:
        after = opened.rank("org/known")
    assert after.lacking == ()
    # All but the intervals, because the repeat is by another author.
    assert [vars(family) | {"low": (), "high": ()} for family in after.families.values()] == [
        vars(family) | {"low": (), "high": ()} for family in before.families.values()
    ]


def test_models_without_spectra_count_where_every_rank_is_known(atlas_copy):
    """No model has spectra, and none needs them: at 50 % all ranks of these deltas are within the kept eight."""
    forget_spectra(atlas_copy, "base = 'org/t5'")
    with Atlas(atlas_copy.root) as opened:
        study = opened.rank("org/t5")
        assert (study.models, study.lacking) == (2, ())
        with pytest.raises(AtlasError, match="None of the 2 models of org/t5 has all its singular values") as raised:
            opened.rank("org/t5", of="weights")
        assert "`build('org/t5', spectra=True)`" in raised.value.hint
        with pytest.raises(AtlasError, match="None of the 2 models"):
            opened.rank("org/t5", threshold=0.99)


@pytest.mark.slow
def test_records_of_the_first_build_without_the_flag_lack_what_other_thresholds_need(planted, tmp_path):
    """The real thing: an atlas built without --spectra."""
    result = planted.shell("index", "build", "--base", "org/t5", "--workers", "1", "--atlas", str(tmp_path / "plain"))
    assert result.code == 0, result.err
    with Atlas(tmp_path / "plain") as opened:
        (info,) = opened.rows("SELECT bool_or(has_spectra) AS some FROM models")
        assert info["some"] is False
        with pytest.raises(AtlasError, match="all its singular values"):
            opened.rank(threshold=0.995)
        with pytest.raises(AtlasError, match="does not hold all singular values") as raised:
            opened.rank(model="ann/t5", of="weights")
        assert raised.value.hint == "Read it again: `add('ann/t5', 'org/t5', spectra=True)`"
    result = planted.shell(
        "index", "add", "ann/t5", "--base", "org/t5", "--spectra", "--atlas", str(tmp_path / "plain")
    )
    assert result.code == 0, result.err
    with Atlas(tmp_path / "plain") as opened:
        check(opened.rank(model="ann/t5", of="weights"), by_numpy(planted, "org/t5", ["ann/t5"], "weights", 0.5))
        study = opened.rank(of="weights")
        assert (study.models, study.lacking) == (1, ("bob/t5",))


# ---- what cannot be answered


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "org/nothing"}, "not a base of this atlas"),
        ({"base": None}, "This atlas holds 4 bases"),
        ({"base": "org/t5", "whole": True}, "org/t5 stores no fused matrices"),
        ({"base": "org/t5", "relation": "adapter"}, "No adapter of org/t5 is indexed"),
        ({"base": "org/t5", "relation": "finetuned"}, "Unknown relation 'finetuned' (choose finetune, adapter"),
        ({"base": "org/known", "model": "eve/copy"}, "eve/copy changes no matrix"),
        ({"base": "org/known", "model": "eve/copi"}, "closest ids: eve/copy"),
        ({"base": "org/t5", "model": "ann/one"}, "is a fine-tune of org/known, not of org/t5"),
    ],
)
def test_one_clear_line(atlas, options, message):
    with pytest.raises(AtlasError) as raised:
        atlas.rank(options.pop("base"), **options)
    assert message in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": 1.1}, {"of": "both"}])
def test_wrong_arguments_of_the_library(atlas, options):
    with pytest.raises(ValueError, match="no ranks of"):
        atlas.rank("org/t5", **options)


def test_a_flagged_model_can_be_asked_for_and_says_what_it_is(atlas):
    one = "no equation is fitted: it needs at least 3 models, and this is 1 model"
    assert atlas.rank("org/known", model="eve/other").notes == ("it is unrelated to the base", one)
    assert "it is a duplicate" in atlas.rank("org/known", model="eve/repeat").notes
    copy = atlas.rank("org/known", model="eve/copy", of="weights")
    assert copy.notes == ("it is a copy of the base", one)
    assert copy.families["query"].ranks[0] is not None


def test_an_atlas_of_another_schema_must_be_rebuilt(atlas_copy):
    execute(atlas_copy.database, "UPDATE atlas_info SET schema_version = 1")
    with pytest.raises(AtlasError, match="has schema 1") as raised:
        Atlas(atlas_copy.root)
    assert "index rebuild" in raised.value.hint


def test_a_damaged_record_is_named(atlas_copy):
    with Atlas(atlas_copy.root) as opened:
        (row,) = opened.rows("SELECT record_key FROM models WHERE model = 'ann/t5'")
        path = atlas_copy.record(row["record_key"])
        path.write_bytes(path.read_bytes()[:-10])
        assert opened.rank("org/t5").models == 2  # the database knows
        with pytest.raises(AtlasError, match=path.stem[:12]):
            opened.rank("org/t5", threshold=0.7)


def test_an_unknown_model_is_met_with_a_command_to_copy(atlas):
    """With the base that was asked for; the four that the atlas holds leave the choice open."""
    for base, named in (("org/t5", "'org/t5'"), (None, "'ID'")):
        for ask in (partial(atlas.rank, base, model="nobody/nothing"), partial(atlas.show, "nobody/nothing", base)):
            with pytest.raises(AtlasError, match=r"add\('nobody/nothing'") as raised:
                ask()
            assert named in raised.value.hint

"""Claims of cards against weights, and policies."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from query import Atlas
from query.questions.check.policy import Policy
from tests.atlas_builder import Model, write_atlas
from tests.bom.conftest import BASE, FIRST, MERGED, PRIVATE, SECOND, chain  # noqa: F401


def verdicts(answer):
    return {claim.claim: claim.verdict for claim in answer.claims}


@pytest.fixture
def changed(chain):  # noqa: F811
    """Runs statements on the atlas and checks a model."""

    def run(model, *statements, policy=None):
        with duckdb.connect(str(AtlasFolder(chain).database)) as connection:
            for statement in statements:
                connection.execute(statement)
        with Atlas(chain) as atlas:
            return atlas.check(model, policy=policy)

    run.folder = chain
    return run


def of(model):
    return f"(SELECT model_id FROM fine_tunes WHERE model = '{model}')"


def test_a_merge_that_calls_itself_a_fine_tune(changed):
    answer = changed(MERGED)
    assert verdicts(answer)["relation"] == "contradicted"
    assert verdicts(answer)["licence"] == "contradicted"
    assert answer.contradicted == ("relation", "licence")
    assert answer.is_allowed is False
    (licence,) = [claim for claim in answer.claims if claim.claim == "licence"]
    assert licence.evidence == f"drops non-commercial of {FIRST}; terms of Gemma of {BASE}"


def test_a_model_that_is_what_it_says(changed):
    answer = changed(
        FIRST,
        f"UPDATE fine_tunes SET licence = 'gemma' WHERE model = '{FIRST}'",
        "UPDATE bases SET licence = 'gemma', licence_link = NULL",
        f"UPDATE records SET dtype = 'float32' WHERE model_id = {of(FIRST)}",
    )
    found = verdicts(answer)
    assert {name: found[name] for name in ("base", "relation", "licence", "quantisation")} == dict.fromkeys(
        ("base", "relation", "licence", "quantisation"), "agrees"
    )
    assert answer.contradicted == ()
    assert answer.is_allowed is True


def test_a_model_of_another_base(changed):
    answer = changed(
        FIRST,
        f"UPDATE records SET is_unrelated = true, base_cosine = .01, verified = false WHERE model_id = {of(FIRST)}",
        f"DELETE FROM lineage WHERE model_id = {of(FIRST)}",
        "INSERT INTO lineage SELECT model_id, record_key, NULL, 'unrelated', NULL, 1, 1, 'contradicted', 'known', '', "
        f"[], 0, TIMESTAMP '2026-01-01', 1 FROM records WHERE model_id = {of(FIRST)}",
    )
    assert verdicts(answer)["base"] == "contradicted"
    assert verdicts(answer)["relation"] == "contradicted"


@pytest.mark.parametrize(
    ("edge_card", "probability", "verdict"),
    [
        ("confirmed", 0.99, "agrees"), ("contradicted", 0.99, "contradicted"), ("contradicted", 0.5, "cannot be told"),
        ("not declared", 0.99, "cannot be told"), ("unsure", 0.5, "cannot be told"),
    ],
)  # fmt: skip
def test_parents(changed, edge_card, probability, verdict):
    answer = changed(
        SECOND,
        f"UPDATE lineage SET card = '{edge_card}', probability = {probability} WHERE model_id = {of(SECOND)}",
    )
    assert verdicts(answer)["parent"] == verdict


@pytest.mark.parametrize(
    ("name", "dtype", "size", "verdict"),
    [
        ("x/model-7b", "bfloat16", 14_500_000_000, "agrees"),
        ("x/model-7b", "float32", 28_000_000_000, "agrees"),
        ("x/model-7b", "bfloat16", 2_800_000_000, "contradicted"),
        ("x/model-350M-v2", "float16", 720_000_000, "agrees"),
        ("x/model-8x7b", "bfloat16", 90_000_000_000, "cannot be told"),
        ("x/model-v2b", "bfloat16", 90, "cannot be told"),
        ("x/model-7b", "fp8", 7_000_000_000, "cannot be told"),
    ],
)
def test_sizes(tmp_path, name, dtype, size, verdict):
    folder = write_atlas(tmp_path, [Model(name, np.ones(4)), Model("y/other", np.eye(4)[0])], base=BASE)
    with duckdb.connect(str(AtlasFolder(folder).database)) as connection:
        files = [{"name": "m.safetensors", "size": size, "sha256": None, "format": "safetensors"}]
        connection.execute("UPDATE records SET dtype = ?, weight_files = ?", [dtype, files])
        connection.execute(
            "INSERT INTO lineage SELECT model_id, record_key, NULL, 'tuned from the base', NULL, 1, 1, 'confirmed', "
            "'known', '', [], 0, TIMESTAMP '2026-01-01', 1 FROM records"
        )
    with Atlas(folder) as atlas:
        assert verdicts(atlas.check(name))["size"] == verdict


@pytest.mark.parametrize(
    ("tag", "dtype", "verdict"),
    [
        ("4-bit", "bfloat16", "contradicted"), ("fp8", "fp8", "agrees"), ("4-bit", "mlx", "agrees"),
        (None, "bfloat16", "agrees"), (None, "fp8", "cannot be told"), ("8-bit", "mlx", "agrees"),
    ],
)  # fmt: skip
def test_quantisation(changed, tag, dtype, verdict):
    statements = [f"UPDATE records SET dtype = '{dtype}' WHERE model_id = {of(FIRST)}"]
    if tag:
        statements.append(f"INSERT INTO tags VALUES ({of(FIRST)}, '{tag}')")
    assert verdicts(changed(FIRST, *statements))["quantisation"] == verdict


@pytest.mark.parametrize(
    ("policy", "allowed", "refused"),
    [
        (Policy(bases=(BASE,)), True, []),
        (Policy(bases=("other/base",)), False, ["bases"]),
        (Policy(licences=("cc-by-nc-*",)), True, []),
        (Policy(licences=("mit",)), False, ["licences"]),
        (Policy(authors=("ann",)), True, []),
        (Policy(authors=("bob",)), False, ["authors"]),
        (Policy(kinds=("finetune",)), True, []),
        (Policy(kinds=("adapter",)), False, ["kinds"]),
        (Policy(known=("size",)), None, ["known: size"]),
    ],
)
def test_policies(changed, policy, allowed, refused):
    statements = ["UPDATE bases SET licence = 'mit', licence_link = NULL"]
    answer = changed(FIRST, *statements, policy=policy)
    assert answer.is_allowed is allowed
    assert [rule.rule for rule in answer.rules if rule.verdict != "allowed"] == refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bases = 'x'", "bases in the policy"), ("base = []", "unknown key 'base'"), ("kinds = ['tuned']", "'tuned'"),
        ("known = [3]", "not a list of texts"), ("a = = b", "cannot be read"), ("known = ['weather']", "'weather'"),
    ],
)  # fmt: skip
def test_a_policy_with_a_mistake(tmp_path, text, problem):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(AtlasError, match=problem):
        Policy.read(file)


def test_the_command(chain, run, tmp_path):  # noqa: F811
    status, output, _ = run("query", "check", MERGED, "--atlas", chain, "--json")
    assert status == 1
    assert json.loads(output)["is_allowed"] is False
    policy = tmp_path / "policy.toml"
    policy.write_text('licences = ["mit"]\nnot_contradicted = []\n')
    status, _, notes = run("query", "check", FIRST, "--atlas", chain, "--policy", policy)
    assert (status, "licences: cc-by-nc-4.0 is not allowed" in notes) == (1, True)
    policy.write_text('licences = ["cc-by-*"]\nnot_contradicted = []\nknown = ["size"]')
    assert run("query", "check", FIRST, "--atlas", chain, "--policy", policy)[0] == 2
    policy.write_text('licences = ["cc-by-*"]\nnot_contradicted = ["base"]')
    assert run("query", "check", FIRST, "--atlas", chain, "--policy", policy)[0] == 0
    assert "no such" in run("query", "check", FIRST, "--atlas", chain, "--policy", tmp_path / "none")[2].lower()


def test_a_private_model(changed):
    assert changed(PRIVATE).model == PRIVATE  # on this machine it keeps its name


@pytest.mark.parametrize(
    "base_licence", ["cc-by-nc-4.0", "gpl-3.0", "llama3", "apache-2.0", "cc-by-nd-4.0", "other", "mit, gpl-3.0"]
)
@pytest.mark.parametrize("licence", ["apache-2.0", "cc-by-nc-sa-4.0", "agpl-3.0", "gemma", "other", "llama3.1", None])
def test_licences_are_judged_as_by_the_view(changed, base_licence, licence):
    """The rule stands in SQL for all models of an atlas, and here for one model that may not be in it."""
    own = "NULL" if licence is None else f"'{licence}'"
    answer = changed(
        FIRST,
        f"UPDATE bases SET licence = '{base_licence}', licence_link = NULL",
        f"UPDATE fine_tunes SET licence = {own} WHERE model = '{FIRST}'",
    )
    with Atlas(changed.folder) as atlas:
        conflicts = atlas.rows("SELECT terms FROM licence_conflicts WHERE model = ? AND parent = ?", [FIRST, BASE])
    assert (verdicts(answer)["licence"] == "contradicted") == bool(conflicts)

"""Lineage in other questions: purity without a model's own family tree, predictions without its parents."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.models.population import components, relatives
from tests.atlas_builder import BASE, Model, write_atlas


def directions(count, length=16):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((length, count)))[0].T


def with_lineage(folder, edges, probability=0.99):
    import duckdb

    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        for child, parent in edges:
            connection.execute(
                "INSERT INTO lineage VALUES (?, 'k', ?, 'continued', NULL, 1, 0.1, 'not declared', 'known', '', [], 0, now(), ?)",
                [child, parent, probability],
            )
    return folder


@pytest.fixture
def families(tmp_path):
    """Four trees of a parent and two children; a tree lies together, and its models name one data set, by four authors."""
    random = np.random.default_rng(1)
    models, edges = [], []
    for tree, centre in enumerate(directions(4)):
        for member in range(3):
            vector = centre + 0.05 * random.standard_normal(len(centre))
            models.append(Model(f"a{member}/tree{tree}-{member}", vector, (f"data{tree % 2}",)))
            if member:
                edges.append((3 * tree + member + 1, 3 * tree + 1))
    return with_lineage(write_atlas(tmp_path / "atlas", models), edges)


def test_purity_without_kin_counts_no_model_of_the_same_tree(families):
    with Atlas(families) as atlas:
        plain = atlas.purity(draws=20)
        without_kin = atlas.purity(draws=20, kin=False)
        vectors = atlas.vectors(BASE)
    assert plain.purity > 0.4
    order = np.argsort(vectors.ids)
    unit = vectors.matrix[order].astype(np.float64)
    trees, data = np.arange(12) // 3, np.arange(12) // 3 % 2
    expected = []
    for row in range(12):
        others = [other for other in np.argsort(-(unit @ unit[row]), kind="stable") if trees[other] != trees[row]]
        matches = [data[other] == data[row] for other in others]
        expected.append(np.mean(matches[: sum(matches)]))
    assert without_kin.purity == pytest.approx(np.mean(expected))
    assert without_kin.chance == pytest.approx(3 / 9)
    assert without_kin.purity < plain.purity


def test_purity_without_kin_needs_lineage(tmp_path):
    models = [Model(f"a/m{n}", vector, ("data",)) for n, vector in enumerate(directions(4))]
    with Atlas(write_atlas(tmp_path / "atlas", models)) as atlas, pytest.raises(AtlasError, match="no stored lineage"):
        atlas.purity(kin=False)


def test_groups_are_joined_through_other_models():
    assert components([1, 2, 3, 4, 5], [(1, 9), (9, 3), (4, 5)]).tolist() == [0, 1, 0, 2, 2]


def test_a_parent_or_child_does_not_vote_on_a_prediction(tmp_path):
    """The parent lies nearest and names another data set: it would decide."""
    near, far, *_ = directions(4)
    random = np.random.default_rng(2)
    models = [Model("me/asked", near, ())]
    models += [Model("mum/parent", near + 0.01 * random.standard_normal(16), ("parents-data",))]
    models += [Model(f"x{n}/own", near + 0.2 * random.standard_normal(16), ("own-data",)) for n in range(4)]
    models += [Model(f"y{n}/else", far + 0.2 * random.standard_normal(16), ("parents-data",)) for n in range(4)]
    plain = write_atlas(tmp_path / "plain", models)
    related = with_lineage(write_atlas(tmp_path / "kept", models), [(1, 2)])
    with Atlas(plain) as atlas:
        assert any(voter.model == "mum/parent" for voter in atlas.predict("me/asked").voters)
        assert relatives(atlas, 1) == set()
    with Atlas(related) as atlas:
        prediction = atlas.predict("me/asked")
        assert relatives(atlas, 1) == {2}
        assert relatives(atlas, 2) == {1}
    assert not any(voter.model == "mum/parent" for voter in prediction.voters)
    # An edge that is less probable than not takes no vote away.
    doubted = with_lineage(write_atlas(tmp_path / "doubted", models), [(1, 2)], 0.3)
    with Atlas(doubted) as atlas:
        assert relatives(atlas, 1) == relatives(atlas, 2) == set()
        assert any(voter.model == "mum/parent" for voter in atlas.predict("me/asked").voters)
    assert prediction.answers[0].dataset == "own-data"


def test_the_report_has_stored_lineage(families, tmp_path):
    from query.faces.report.page import Section, Source, page
    from query.faces.report.views import lineage

    def written(atlas):
        source, section = Source(atlas, BASE, 0), Section("lineage", "Lineage")
        section.facts = lineage(source, section)
        return page(source, [section])

    with Atlas(families) as atlas:
        assert "continued" in written(atlas)
    models = [Model(f"a/m{n}", vector, ("data",)) for n, vector in enumerate(directions(4))]
    with Atlas(write_atlas(tmp_path / "bare", models)) as atlas:
        assert "query lineage --base org/base --all" in written(atlas)

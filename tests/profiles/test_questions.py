"""depth, depth_study, invert and features on an atlas with known answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr

from indexer.errors import AtlasError
from query import Atlas
from query.contract.figures import draw
from query.faces.cli import main
from query.questions.depth.depth import PANELS, sentence
from tests.atlas_builder import BASE, family, write_atlas
from tests.database import execute
from tests.device import DEVICES
from tests.profiles.profiled import BASE_RECOVERED, profiled_atlas


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return profiled_atlas(tmp_path_factory.mktemp("profiled"))


@pytest.fixture
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> str:
    """A small GPT-2 with a tokenizer of sixty words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    config = GPT2Config(n_embd=64, n_layer=3, n_head=2, vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    words = {
        "<s>": 0,
        **{
            word: number
            for number, word in enumerate(["the", "sky", "is", "blue", ".", "sea", "was", "under", "green"], 1)
        },
    }
    words |= {f"word{number}": number for number in range(len(words), 64)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> str:
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "vit"
    ViTModel(ViTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16,
                       patch_size=4)).save_pretrained(folder)  # fmt: skip
    return str(folder)


@pytest.mark.slow
def test_a_model_compared_with_its_base(atlas):
    depth = atlas.depth("author0/set0-0")
    assert (depth.against, len(depth.layers), len(depth.against_layers), len(depth.untrained_layers)) == (
        "base",
        4,
        4,
        4,
    )
    assert [row["layer"] for row in depth.layers] == [1, 2, 3, 4]
    deltas = [row["delta"] for row in depth.layers]
    assert deltas == pytest.approx([deltas[0] * np.sqrt(layer) for layer in (1, 2, 3, 4)], rel=1e-5)
    assert "descent finds fewer tokens" in depth.sentence
    assert "layer 4 on" in depth.sentence
    answer = json.loads(json.dumps(depth.to_dict()))
    assert {"model", "base", "probe", "sequences", "tokens", "seed", "recipe", "layers", "notes"} <= set(answer)
    assert {"layer", "tolerance", "tolerance_error", "delta"} <= set(answer["layers"][0])
    assert len(depth.to_df()) == 4
    assert draw(depth.figure(), ".png").startswith(b"\x89PNG")
    assert draw(depth.figure(), ".svg") == draw(depth.figure(), ".svg")


@pytest.mark.slow
def test_panels_have_titles_in_words_and_named_axes(atlas):
    figure = atlas.depth("author0/set0-0").figure()
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) > 4
    titles = [axes.get_title(loc="left") for axes in panels]
    assert set(titles) <= {title for title, _ in PANELS.values()}
    assert all(" " in title and "_" not in title for title in titles)
    assert all(axes.get_ylabel() for axes in panels)
    study = atlas.depth_study().figure()
    assert [axes.get_ylabel() for axes in study.axes if axes.axison].count("change") == 3  # of 18 panels in rows of 6
    assert "top" in [text.get_text() for axes in study.axes for text in axes.get_yticklabels()]


def test_a_base_is_compared_with_an_untrained_twin(atlas):
    depth = atlas.depth(BASE)
    assert depth.layers[3]["recovered"] == pytest.approx(BASE_RECOVERED[3])
    assert depth.against_layers[3]["recovered"] == 1.0
    assert atlas.depth("author0/set0-0", against="author1/set1-0").against_layers


def test_a_missing_profile_is_an_error(atlas, tmp_path):
    with pytest.raises(AtlasError, match="has no profile"):
        atlas.depth("author0/set0-0", against="nobody/at-all")
    with (
        Atlas(write_atlas(tmp_path / "bare", family())) as bare,
        pytest.raises(AtlasError, match="index profile --base"),
    ):
        bare.depth_study()


@pytest.mark.slow
def test_the_study_agrees_with_scipy_and_names_models_that_lose_their_input(atlas):
    study = atlas.depth_study()
    assert (study.models, study.authors) == (18, 6)
    rows = study.to_df()
    for layer in (1, 4):
        rows_of_layer = rows[rows.layer == layer]
        for measure in ("drift", "cka", "tolerance", "reach", "recovered", "readable"):
            (row,) = [row for row in study.agreement if (row.measure, row.layer, row.of) == (measure, layer, "delta")]
            assert row.rho == pytest.approx(spearmanr(rows_of_layer.delta, rows_of_layer[measure]).statistic)
            assert measure != "drift" or row.rho == pytest.approx(1.0)
    readable = next(row for row in study.agreement if (row.measure, row.layer, row.of) == ("readable", 1, "delta"))
    assert readable.low < 0 < readable.high
    assert {row.model.rpartition("/")[2][:4] for row in study.forgetful} == {"set0"}
    assert len(study.forgetful) == 6
    assert all((row.layer, row.measure) == (4, "recovered") for row in study.forgetful)
    data_share = {row.measure: row for row in study.data_share}
    assert data_share["recovered"].share > 0.9
    assert data_share["recovered"].p < 0.01
    assert study.layers[3]["recovered_base"] == pytest.approx(0.9)
    assert draw(study.figure(), ".png").startswith(b"\x89PNG")
    assert json.loads(json.dumps(study.to_dict()))["models"] == 18
    assert atlas.depth_study().to_dict() == study.to_dict()


def test_a_study_of_too_few_models_reports_how_many_are_left_out_and_why(tmp_path):
    folder = profiled_atlas(tmp_path / "atlas")
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        connection.execute("UPDATE profiles SET seed = 1 WHERE model_id IN (1, 2)")
        connection.execute("UPDATE records SET is_unrelated = true WHERE model_id BETWEEN 3 AND 6")
        connection.execute("UPDATE records SET is_copy = true WHERE model_id BETWEEN 7 AND 9")
        connection.execute("UPDATE records SET duplicate_of = 18 WHERE model_id BETWEEN 10 AND 11")
    left_out = ("left out: 4 unrelated to the base, 3 copies of the base, 2 duplicates, "
                "2 profiled with another probe or seed")  # fmt: skip
    with Atlas(folder) as opened:
        study = opened.depth_study()
        assert (study.models, study.notes) == (7, (left_out,))
    execute(folder / "atlas.duckdb", "UPDATE records SET is_unrelated = true WHERE model_id BETWEEN 12 AND 14")
    with Atlas(folder) as opened, pytest.raises(AtlasError) as caught:
        opened.depth_study()
    expected = left_out.replace("4 unrelated", "7 unrelated")
    assert caught.value.message == f"4 of 18 profiled models of {BASE} can be used, and 5 are needed ({expected})."


def test_a_sentence_mentions_no_difference_within_chance():
    rows = [{"layer": 1, "readable": 0.97, "readable_error": 0.02, "recovered": None, "tolerance": 3.0,
             "tolerance_error": 0.1, "reach": 1.0, "reach_error": 0.1}]  # fmt: skip
    other = [rows[0] | {"tolerance": 3.1, "readable": 1.0}]
    assert sentence(rows, other, "its base") == "keeps its input to the end: a linear map recovers it from every layer."
    noisy = [rows[0] | {"tolerance": 1.5}]
    assert "up to 2.1× less noise" in sentence(noisy, other, "its base")


def test_a_sentence_names_the_layers_that_equal_the_bases():
    rows = [{"layer": layer, "readable": 1.0, "readable_error": 0.0, "recovered": None, "tolerance": 3.0,
             "tolerance_error": 0.1, "reach": 1.0, "reach_error": 0.1, "drift": drift}
            for layer, drift in ((1, 0.0), (2, 0.0), (3, 0.4))]  # fmt: skip
    base = [row | {"drift": None} for row in rows]
    assert sentence(rows, base, "its base").startswith("up to layer 2 it gives exactly what its base gives; ")
    assert sentence(rows[:2], base, "its base") == "every layer gives exactly what its base gives."
    assert "exactly" not in sentence(rows[2:], base, "its base")


def first_line(result, capsys):
    from query.faces.cli.printing import print_result

    print_result(result, "table")
    return capsys.readouterr().out.splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_words_come_back(atlas, gpt2, capsys, device):
    inverted = atlas.invert(gpt2, "the sky is blue .", top=3, device=device)
    lead = first_line(inverted, capsys)
    assert lead.startswith(f"From the output of layer 1 of {inverted.model} 100")
    assert lead.endswith("from that of layer 3.")
    assert [answer.layer for answer in inverted.layers] == [1, 2, 3]
    assert inverted.layers[0].right == 1.0
    assert inverted.layers[0].output.split() == ["the", "sky", "is", "blue", "."]
    assert all(len(words) == 3 for words in inverted.layers[0].top)
    assert draw(inverted.figure(), ".png").startswith(b"\x89PNG")
    as_json = json.loads(json.dumps(inverted.to_dict()))["layers"]
    assert as_json[0]["right"] == 1.0
    assert all(layer["condition"] >= 1 and 1 <= layer["directions"] <= 64 for layer in as_json)
    again = atlas.invert(gpt2, "the sky is blue .", device=device)
    assert again.to_dict()["layers"][0]["output"] == inverted.layers[0].output


def test_words_by_the_original_recipe_and_from_some_positions(atlas, gpt2):
    inverted = atlas.invert(gpt2, "the sky is blue .", recipe="original", steps=60, rate=0.3, layers=[1], restrict=True)
    assert set(inverted.layers[0].output.split()) <= {"the", "sky", "is", "blue", "."}
    assert "only words of the text" in inverted.notes[-1]
    part = atlas.invert(gpt2, "the sky is blue .", keep="1:", recipe="blank", steps=20, layers=[2])
    assert len(part.layers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_images_come_back_from_a_vision_transformer_and_behind_a_stem(atlas, vit, gpt2, capsys, device):
    inverted = atlas.invert(vit, layers=[1], device=device)
    assert first_line(inverted, capsys).endswith(
        f"are recovered with an error of {inverted.layers[0].error:.3f} (0 is perfect)."
    )
    assert inverted.layers[0].error < 0.5
    assert sum(inverted.layers[0].rows) == pytest.approx(1)
    assert set(inverted.to_dict()["layers"][0]) == {
        "layer",
        "error",
        "rows",
        "high_frequency",
        "condition",
        "directions",
    }
    assert {"high_frequency", "condition", "directions"} <= set(inverted.table()[0])
    assert 0 < inverted.layers[0].high_frequency < 1
    assert draw(inverted.figure(), ".png").startswith(b"\x89PNG")
    assert atlas.invert(gpt2, layers=[1], stem="image", device=device).layers[0].error < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_features_of_a_causal_model_stay_before_their_patch(atlas, gpt2, vit, capsys, device):
    features = atlas.features(gpt2, neurons="all", patch=20, layers=[2], device=device)
    (rows,) = [feature.change_by_row for feature in features.features]
    assert features.features[0].unchanged >= 43 / 64  # of 64 patches, those behind it
    assert sum(rows[3:]) == 0  # patch 20 lies in the third row of eight: nothing behind it is changed
    grid = atlas.features(vit, neurons="0-2", layers=[1, 2], device=device)
    assert [(feature.layer, feature.neuron) for feature in grid.features] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (2, 2),
    ]
    beaten = sum(feature.activation > feature.best_probe for feature in grid.features)
    assert beaten >= 4
    lead = first_line(grid, capsys)
    assert lead.startswith(f"{beaten} of 6 neurons in 2 layers of {grid.model} respond more")
    assert draw(grid.figure("dark"), ".png").startswith(b"\x89PNG")
    inside = atlas.features(vit, neurons="63", layers=[1], module="mlp", plain=True, device=device)
    assert (inside.to_dict()["module"], inside.features[0].neuron) == ("mlp", 63)
    assert {"unchanged", "consistency"} <= set(inside.table()[0])
    answer = json.loads(json.dumps(grid.to_dict()))
    assert {"model", "layers", "neurons", "activation", "best_probe", "change_by_row", "change_by_column"} <= set(
        answer
    )


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (lambda atlas, gpt2, vit: atlas.invert(gpt2, "sky"), "gives 1 tokens"),
        (lambda atlas, gpt2, vit: atlas.invert(gpt2, "the sky " * 60), "up to"),
        (lambda atlas, gpt2, vit: atlas.invert(gpt2, "the sky is blue", layers=[9]), "1 to 3"),
        (lambda atlas, gpt2, vit: atlas.invert(gpt2, "the sky is blue", keep="a:b"), "not a range"),
        (lambda atlas, gpt2, vit: atlas.invert(vit, "the sky is blue"), "takes images"),
        (lambda atlas, gpt2, vit: atlas.invert(vit, images=["/no/such.png"]), "no file"),
        (lambda atlas, gpt2, vit: atlas.invert(vit, stem="image"), "takes images without a stem"),
        (lambda atlas, gpt2, vit: atlas.features(gpt2, neurons="90"), "0 to 63"),
        (lambda atlas, gpt2, vit: atlas.features(gpt2, neurons="a-b"), "not a valid list of neurons"),
        (lambda atlas, gpt2, vit: atlas.features(gpt2, neurons="all"), "`patch=0`"),
        (lambda atlas, gpt2, vit: atlas.features(gpt2, patch=64), "0 to 63"),
        (lambda atlas, gpt2, vit: atlas.features(vit, layers=[3]), "1 to 2"),
        (lambda atlas, gpt2, vit: atlas.features(vit, layers=[0], module="attention"), "no modules"),
        (lambda atlas, gpt2, vit: atlas.features(vit, neurons="64", module="mlp"), "0 to 63"),
        (lambda atlas, gpt2, vit: atlas.features(vit, module="head"), "Unknown module"),
        (lambda atlas, gpt2, vit: atlas.features(gpt2, stem=vit), "width 96.*64"),
    ],
)
def test_invalid_arguments_are_one_line_errors(atlas, gpt2, vit, question, expected):
    with pytest.raises(AtlasError) as caught:
        question(atlas, gpt2, vit)
    assert re.search(expected, str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_profile_is_measured_and_nothing_is_stored(atlas, gpt2, folder):
    depth = atlas.depth(gpt2, against="untrained")
    assert len(depth.layers) == len(depth.against_layers) == 3
    assert any("nothing was stored" in note for note in depth.notes)
    assert not (folder / "profiles").exists()


def test_a_model_is_run_without_an_atlas_unless_one_was_named(gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["invert", gpt2, "the sky is blue .", "--steps", "2", "--layers", "1", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert [layer["layer"] for layer in json.loads(result.stdout)["layers"]] == [1]
    assert (
        CliRunner().invoke(main, ["features", gpt2, "--neurons", "0", "--layers", "1", "--out", "n.png"]).exit_code == 0
    )
    assert (tmp_path / "n.png").stat().st_size > 1000
    for with_atlas in ([*arguments, "--atlas", "other"], ["--atlas", "other", *arguments]):
        refused = CliRunner().invoke(main, with_atlas)
        assert refused.exit_code == 1
        assert "other does not exist" in refused.stderr

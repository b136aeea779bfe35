"""A family of three generations with mirrors and copies, from the crawl to what an atlas says of it."""

from __future__ import annotations

import shutil

import duckdb
import pytest
import transformers

from tests.adapters.test_adapter_bases import add_adapter, check, records, verdicts
from tests.tiny_hub import BASE, add_model, describe, served_shell, shift_weights

pytestmark = pytest.mark.slow


def tagged(parent: str, relation: str) -> dict:
    return {"tags": [f"base_model:{parent}", f"base_model:{relation}:{parent}"]}


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    store = tiny_store(4, tmp_path_factory.mktemp("family") / "store")
    # A mirror with the base's file, which its tag calls a fine-tune; a copy that nothing names; two in 4 bits.
    shutil.copytree(store / BASE, store / "mia/tiny-base-ungated")
    describe(store, "mia/tiny-base-ungated", **tagged(BASE, "finetune"))
    for copied in (BASE, "ann/glue-0"):
        name = f"quin/{copied.rpartition('/')[2]}-4bit"
        (store / name).mkdir(parents=True)
        (store / name / "config.json").write_text("{}")
        describe(store, name, **tagged(copied, "quantized"), downloads=5)
    (store / "max/other").mkdir(parents=True)
    (store / "max/other/config.json").write_text('{"model_type": "gpt2"}')
    describe(store, "max/other")
    model = transformers.RobertaForSequenceClassification.from_pretrained(store / "ann/glue-0")
    shift_weights(model.roberta, 2, seed=500)
    add_model(store, "zoe/second", model, dataset="squad", base="ann/glue-0")
    shift_weights(model.roberta, 1, seed=501)
    add_model(store, "zoe/third", model, dataset="squad", base="zoe/second", relation="merge")
    expected = {
        name: add_adapter(store, name, named, tagged=named, seed=number)
        for number, (name, named) in enumerate((
            ("eve/on-mirror", "mia/tiny-base-ungated"),
            ("eve/on-4bit", "quin/tiny-base-4bit"),
            ("eve/on-tuned-4bit", "quin/glue-0-4bit"),
            ("eve/on-third", "zoe/third"),
            ("eve/on-unnamed", "nobody/same-weights"),
        ))
    }  # fmt: skip
    with served_shell(store) as shell:
        yield shell, expected


def test_a_family_is_found_read_and_shown(shell):
    shell, expected = shell
    command = ("index", "build", "--base", BASE, "--same-as", "nobody/same-weights")
    dry = shell(*command, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert "there is no nobody/same-weights on the Hub; models that name it are still looked for" in dry.err
    tree = {(row["steps"], row["relation"]): row["models"] for row in dry.json["dry_run"]["tree"]}
    assert tree == {
        (1, "finetune"): 13, (2, "finetune"): 1, (2, "adapter"): 3, (3, "merge"): 1, (3, "adapter"): 1, (4, "adapter"): 1,
    }  # fmt: skip
    assert "2 steps from the base: 1 finetune, 3 adapter" in dry.err
    assert f"the crawl made {dry.json['dry_run']['api_calls']} API requests; in 5 min the Hub allows 500" in dry.err
    direct = shell(*command, "--dry-run", "--json", "--no-descendants")
    assert sum(row["models"] for row in direct.json["dry_run"]["tree"]) == 15
    bounded = shell(*command, "--dry-run", "--json", "--depth", "2")
    assert "models were not looked for" in bounded.err

    build = shell(*command, "--json")
    assert build.code == 0, build.err
    assert (build.json["discovered"], build.json["indexed"]) == (20, 20)
    assert verdicts(shell) == {
        "eve/on-mirror": "base", "eve/on-4bit": "base", "eve/on-unnamed": "base",
        "eve/on-tuned-4bit": "finetune", "eve/on-third": "finetune",
    }  # fmt: skip
    records_by_model = records(shell)
    for name in ("eve/on-mirror", "eve/on-4bit", "eve/on-unnamed"):
        assert records_by_model[name].adapter_base.parent == ""
        check(records_by_model[name], expected[name])
    with duckdb.connect(str(shell.folder / "atlas/atlas.duckdb"), read_only=True) as connection:
        paths = dict(connection.execute(
            "SELECT model, list_transform(path, lambda one: one.relation || ' ' || one.model) FROM models "
            "WHERE len(path) > 1"
        ).fetchall())  # fmt: skip
    assert paths == {
        "eve/on-mirror": ["finetune mia/tiny-base-ungated", "adapter eve/on-mirror"],
        "eve/on-4bit": ["quantized quin/tiny-base-4bit", "adapter eve/on-4bit"],
        "eve/on-unnamed": ["copy nobody/same-weights", "adapter eve/on-unnamed"],
        "eve/on-tuned-4bit": ["finetune ann/glue-0", "quantized quin/glue-0-4bit", "adapter eve/on-tuned-4bit"],
        "zoe/second": ["finetune ann/glue-0", "finetune zoe/second"],
        "zoe/third": ["finetune ann/glue-0", "finetune zoe/second", "merge zoe/third"],
        "eve/on-third": ["finetune ann/glue-0", "finetune zoe/second", "merge zoe/third", "adapter eve/on-third"],
    }
    shown = shell("query", "show", "eve/on-tuned-4bit")
    path = f"{BASE} → ann/glue-0 (finetune) → quin/glue-0-4bit (quantized) → eve/on-tuned-4bit (adapter)"
    assert path in " ".join(shown.out.split())

    # Another name that was given once is remembered, and a model that was read and is a copy is a mirror.
    shell.hub.reset_log()
    again = shell("index", "build", "--base", BASE, "--no-descendants", "--json")
    assert (again.json["indexed"], again.json["discovered"]) == (0, 16)
    queries = {request.query for request in shell.hub.requests if "filter=" in request.query}
    assert any("nobody%2Fsame-weights" in query for query in queries)
    assert any("mia%2Ftiny-base-ungated" in query for query in queries)
    wrong = shell("index", "build", "--base", BASE, "--same-as", "not an id")
    assert wrong.code == 2 or "is not a Hub id" in wrong.err
    # One of another type cannot be it, and is not remembered.
    other = shell("index", "build", "--base", BASE, "--same-as", "max/other")
    assert other.code == 1
    assert "max/other is of type gpt2" in other.err
    shell.hub.reset_log()
    assert shell("index", "build", "--base", BASE, "--dry-run").code == 0
    assert not [request for request in shell.hub.requests if "max%2Fother" in request.query]

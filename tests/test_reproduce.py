"""The study of the seed's bases: what its rooms make of made-up results, on a planted Hub, and (slow) end to end."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest

from scripts.loopback_hub import LoopbackHub, StoreError
from scripts.reproduce import __main__ as command
from scripts.reproduce import bases, planted, replies, study, tables
from scripts.reproduce.cells import from_hub, number, table
from scripts.reproduce.picture import draw_purity
from scripts.reproduce.planted import Check, Kind, Misfit, Outcome
from scripts.reproduce.results import BaseResults, Counts, Reply, Results
from scripts.terminal import CommandFailed, Terminal
from tests.loopback_hub.store import add_row, fetch, get_json, pages, write
from tests.world import BASE, make_world

HOSTILE = "<b>x</b>|`a`\x1b[31m"


# ---------------------------------------------------------------- several stores, one Hub


@pytest.fixture
def two_stores(tmp_path):
    for store, owner, name, old in (("one", "ann", "tiny-bert", "bert"), ("two", "ann", "tiny-t5", "t5")):
        write(tmp_path / store / owner / name / "config.json", {"model_type": old})
        add_row(tmp_path / store, f"{owner}/{name}", old_ids=[old], downloads=len(name), tags=["demo"])
    write(tmp_path / "two" / "bob" / "third" / "config.json", {})
    write(tmp_path / "one" / "zoe" / "last" / "config.json", {})
    return tmp_path / "one", tmp_path / "two"


def test_two_stores_are_listed_and_served_as_one(two_stores):
    with LoopbackHub(*two_stores, page_size=2) as hub:
        assert hub.prepare() == 4
        ids = ["ann/tiny-bert", "ann/tiny-t5", "bob/third", "zoe/last"]
        assert [repository.id for repository in hub.store.repositories()] == ids
        listed = [[row["id"] for row in page] for page in pages(f"{hub.endpoint}/api/models?sort=downloads")]
        assert listed == [ids[:2], ids[2:]]
        for model, kind in (("ann/tiny-bert", "bert"), ("ann/tiny-t5", "t5")):
            assert get_json(f"{hub.endpoint}/{model}/resolve/main/config.json") == {"model_type": kind}
        status, headers, _ = fetch(f"{hub.endpoint}/api/models/t5")
        assert (status, headers["Location"]) == (307, "/api/models/ann/tiny-t5")
        assert fetch(f"{hub.endpoint}/api/models/ann/tiny-gpt2")[0] in (401, 404)


@pytest.mark.parametrize("facts", [{}, {"old_ids": ["bert"]}])
def test_an_id_in_two_stores_is_refused_with_both_named(two_stores, facts):
    one, two = two_stores
    name = "ann/another" if facts else "ann/tiny-bert"
    write(two / name / "config.json", {})
    add_row(two, name, **facts)
    with pytest.raises(StoreError, match=f"{'bert' if facts else name} stands both in .*one and in .*two"):
        LoopbackHub(one, two)
    LoopbackHub(two).stop()


# ---------------------------------------------------------------- what was planted


def told(outcome="indexed", reason=None, flag=None):
    return {"outcome": outcome, "reason": reason, "flag": flag, "why": f"{outcome} for a reason."}


@pytest.mark.parametrize(
    ("expected", "outcome", "is_right"),
    [
        (told(), Outcome("indexed"), True),
        (told(), Outcome("indexed", flags=frozenset(["copy"])), False),
        (told(), Outcome("failed", "timeout"), False),
        (told(flag="copy"), Outcome("indexed", flags=frozenset(["copy", "duplicate"])), True),
        (told(flag="duplicate"), Outcome("indexed"), False),
        (told("skipped", "gated"), Outcome("skipped", "gated"), True),
        (told("skipped", "gated"), Outcome("skipped", "disabled"), False),
        (told("not listed"), Outcome("not listed"), True),
        (told("not listed"), Outcome("indexed"), False),
    ],
)
def test_an_outcome_is_as_expected_or_not(expected, outcome, is_right):
    found = {"a/b": outcome} if outcome.status != "not listed" else {}
    made = planted.check({"a/b": expected}, found, is_partial=False)
    assert [(kind.models, kind.as_expected) for kind in made.kinds] == [(1, int(is_right))]
    assert [misfit.model for misfit in made.misfits] == ([] if is_right else ["a/b"])


def test_beyond_a_limit_nothing_is_judged_but_what_was_tried():
    expected = {"a/1": told(), "a/2": told(), "a/3": told("skipped", "gated"), "a/4": told("not listed")}
    found = {"a/1": Outcome("indexed"), "a/2": Outcome("listed"), "a/4": Outcome("indexed")}
    made = planted.check(expected, found, is_partial=True)
    assert made.not_tried == 2
    assert [misfit.model for misfit in made.misfits] == ["a/4"]
    assert {kind.kind: kind.models for kind in made.kinds} == {"ordinary": 1, "not listed": 1}
    whole = planted.check(expected, found, is_partial=False)
    assert [misfit.model for misfit in whole.misfits] == ["a/2", "a/3", "a/4"]


# ---------------------------------------------------------------- results as a page


def score(purity, **more):
    numbers = {"chance": 0.1, "ci_low": 0.2, "ci_high": 0.9, "p_value": 0.001}
    return {"purity": purity, **(numbers if purity is not None else {}), **more}


def purity_answer(plain, across, dataset="glue"):
    rows = [{"dataset": dataset, "models": 4, "purity": plain, "chance": 0.25}] if plain is not None else []
    note = {} if plain is not None else {"note": "No two models share a dataset."}
    return score(plain, cross_author=score(across), by_dataset=rows, models=9, datasets=2, **note)


def reply(name, answer, file=None, error=None):
    return Reply(name, f"query {name}", 1.5, answer, file, error)


def family(first, last, equation):
    return {"ranks": [first, None, last], "fit": {"equation": equation}}


def base_results(base="org/one", **purities):
    made = {f"purity-{name}": reply(f"purity-{name}", answer) for name, answer in purities.items()}
    return BaseResults(
        "roberta-base", base, "c" * 40, Counts(7, 2, 1, 3, 1, 0, 1, 2, 4, 3, {"gated": 2}), 5_000_000,
        None, made, {"build": 10.0, "purity": 2.5},
    )  # fmt: skip


def results(*of):
    return Results("somewhere", None, 50, of, {"seed": 3.0}, "figures/purity.png", {"python": "3.11"})


def rows_below(text, title):
    """The cells of the first table of a section."""
    lines = text.partition(title)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")])
    assert len({len(row) for row in rows}) == 1
    return [rows[0], *rows[2:]]


def test_the_best_purity_of_each_base_is_bold():
    one = base_results(seed=purity_answer(0.25, 0.2), input=purity_answer(0.75, 0.1))
    two = base_results("org/two", seed=purity_answer(0.5, 0.3), input=purity_answer(None, None))
    text = tables.purity(results(one, two))
    head, *rows = rows_below(text, "## Purity")
    assert head == ["representation", "`org/one`", "`org/two`"]
    cells = dict(zip(bases.REPRESENTATIONS, (row[1:] for row in rows), strict=True))
    assert cells["input"][0] == "**0.75** (0.20–0.90), chance 0.100, p 0.001"
    assert cells["seed"] == [
        "0.25 (0.20–0.90), chance 0.100, p 0.001",
        "**0.50** (0.20–0.90), chance 0.100, p 0.001",
    ]
    assert cells["input"][1] == "No two models share a dataset."
    assert cells["output"] == ["–", "–"]
    across = rows_below(text, "left out of its neighbours")
    assert across[1][1].startswith("**0.20**")  # the best across authors is another than the best of all


def test_rank_equations_of_weights_and_change_stand_side_by_side():
    one = base_results()
    made = {
        "rank-weights": {"families": {"query": family(8.0, 6.0, "rank ≈ 8 − x")}},
        "rank-delta": {"families": {"query": family(2.0, 1.0, "rank ≈ 2"), "key": family(3.0, 3.0, "rank ≈ 3")}},
        "rank-delta-whole": {"families": {"query_key_value": family(4.0, 4.0, "rank ≈ 4"), "key": family(0, 0, "no")}},
    }
    one = replace(one, replies={name: reply(name, answer) for name, answer in made.items()})
    _, *rows = rows_below(tables.ranks(results(one)), "## Rank")
    assert rows == [
        ["`query`", "8.0 to 6.0", "`rank ≈ 8 − x`", "2.0 to 1.0", "`rank ≈ 2`"],
        ["`key`", "–", "–", "3.0 to 3.0", "`rank ≈ 3`"],
        ["`query_key_value`", "–", "–", "4.0 to 4.0", "`rank ≈ 4`"],
    ]


def test_agreement_of_clusters_with_its_chance():
    row = {"labels": "datasets", "measure": "ari", "among": "all", "value": 0.8, "chance": -0.001, "p_value": 0.001}
    answer = {"clusters": [1, 2], "clustered": 6, "models": 9, "agreement": [row]}
    one = replace(base_results(), replies={"clusters-input": reply("clusters-input", answer)})
    _, cells = rows_below(tables.clusters(results(one)), "## Clusters")
    assert cells == ["`org/one`", "`input`", "2", "6 of 9", "0.80 (0.00, 0.001)", "–", "–", "–", "–"]


def test_what_was_planted_is_one_table_and_misfits_are_named():
    kinds = (Kind("ordinary", 5, 4, "a/b", "As it is."), Kind("copy", 1, 1, "a/c", "The same."))
    misfit = Misfit("a/x", "indexed", "skipped (gated)", "Why.")
    one = replace(base_results(), check=Check(kinds, (misfit,), 3))
    two = replace(base_results("org/two"), check=Check(kinds[:1], ()))
    text = tables.planted(results(one, two))
    assert rows_below(text, "planted")[1:] == [
        ["ordinary", "4 of 5", "4 of 5", "As it is."],
        ["copy", "1 of 1", "–", "The same."],
    ]
    assert rows_below(text, "Otherwise")[1] == ["`a/x`", "indexed", "skipped (gated)", "Why."]
    assert "3 models lie beyond the limit" in text


def test_nothing_of_the_hub_becomes_markup(tmp_path):
    one = base_results(input=purity_answer(0.5, 0.5, dataset=HOSTILE))
    failed = replace(reply("report", None), error=HOSTILE)
    one = replace(one, replies=one.replies | {"report": failed})
    text = tables.page(results(one))
    assert "<b>" not in text
    assert "\x1b" not in text
    assert rows_below(text, "## Purity by dataset")[1][0] == "&lt;b&gt;x&lt;/b&gt;¦\\`a\\`\\\\x1b\\[31m"
    assert rows_below(text, "Without an answer")[1][1].startswith("&lt;b&gt;")


def test_figures_are_shown_and_pages_are_linked():
    made = [reply("map-input", {}, "figures/map.svg"), reply("rank-delta", {}, "figures/rank.pdf"), reply("x", {})]
    one = replace(base_results(), replies={each.name: each for each in made})
    lines = tables.pictures(results(one)).splitlines()
    assert "![map-input](figures/map.svg)" in lines
    assert "[rank-delta](figures/rank.pdf)" in lines
    assert "![Purity by representation](figures/purity.png)" in lines


def test_a_cell_cannot_end_its_row():
    assert table(["a"], [["b\nc|d"]]).splitlines()[2] == "| b c\\|d |"
    assert (number(-0.001, 2), number(None, 2), number(1.25, 1)) == ("0.00", "–", "1.2")
    assert from_hub("a*b") == "a\\*b"


@pytest.mark.parametrize("count", [1, 3])
def test_the_figure_has_a_panel_for_each_base(tmp_path, count):
    made = [
        base_results(f"org/$x_{at}", input=purity_answer(0.5, None), seed=purity_answer(None, None))
        for at in range(count)
    ]
    draw_purity(results(*made), tmp_path / "purity.svg")
    drawn = (tmp_path / "purity.svg").read_text()
    assert [f"org/$x_{at}" in drawn for at in range(count)] == [True] * count
    draw_purity(results(*made), tmp_path / "purity.png")
    assert (tmp_path / "purity.png").read_bytes().startswith(b"\x89PNG")


def test_results_can_be_read_again(tmp_path):
    made = results(replace(base_results(input=purity_answer(0.5, 0.4)), check=Check((), (Misfit("a", "b", "c", "d"),))))
    made.write(tmp_path / "results.json")
    (one,) = json.loads((tmp_path / "results.json").read_text())["bases"]
    assert one["replies"]["purity-input"]["answer"]["purity"] == 0.5
    assert one["check"]["misfits"][0]["model"] == "a"
    assert one["counts"]["reasons"] == {"gated": 2}


# ---------------------------------------------------------------- asked once


def test_a_reply_is_kept_while_its_state_command_and_file_are_the_same(tmp_path):
    question = bases.Question("map", "query map --out figures/m.png", "figures/m.png")
    write(tmp_path / "figures" / "m.png", b"png")
    made = Reply(question.name, question.command, 2.0, {"models": 3}, question.file)
    kept = tmp_path / "map.json"
    assert replies.read(kept, question, "s1", tmp_path) is None
    replies.write(kept, made, "s1")
    assert replies.read(kept, question, "s1", tmp_path) == made
    assert replies.read(kept, question, "s2", tmp_path) is None
    assert replies.read(kept, replace(question, command="query map"), "s1", tmp_path) is None
    (tmp_path / "figures" / "m.png").unlink()
    assert replies.read(kept, question, "s1", tmp_path) is None
    kept.write_text("half of")
    assert replies.read(kept, question, "s1", tmp_path) is None


def test_a_reply_is_told_in_a_few_words():
    made = {
        "purity 0.50, chance 0.10": reply("purity-x", purity_answer(0.5, 0.5)),
        "No two models share a dataset.": reply("purity-x", purity_answer(None, None)),
        "2 clusters, adjusted Rand index with datasets 0.25": reply("clusters-x", {"ari": 0.25, "clusters": [1, 2]}),
        "0 clusters": reply("clusters-x", {"ari": None, "clusters": []}),
        "figures/m.png": reply("map-x", {"models": 3}, "figures/m.png"),
        "no answer": reply("report", None, error="Error: why"),
    }
    assert {replies.gist(each) for each in made.values()} == set(made)


def test_every_base_of_the_seed_is_asked_the_same_and_fused_ones_both_ways():
    assert [base.id for base in bases.BASES] == ["bert-base-uncased", "roberta-base", "t5-base", "gpt2-medium"]
    asked = {base.id: [q.name for q in bases.questions(base, "org/x", ".png")] for base in bases.BASES}
    assert asked["bert-base-uncased"] == asked["roberta-base"] == asked["t5-base"]
    assert set(asked["gpt2-medium"]) - set(asked["t5-base"]) == {"rank-weights-whole", "rank-delta-whole"}
    assert {"purity-seed", "purity-input", "clusters-seed", "map-seed", "rank-weights", "report"} <= set(
        asked["t5-base"]
    )
    files = [q.file for q in bases.questions(bases.BASES[3], "org/x", ".svg") if q.file]
    assert len(set(files)) == len(files)
    assert all(file.startswith(("figures/", "reports/")) and "org--x" in file for file in files)


def test_a_command_that_fails_says_its_last_line(tmp_path):
    run = Terminal(tmp_path)
    with pytest.raises(CommandFailed, match=r"no atlas\.duckdb there") as failure:
        run.ask("query sql 'SELECT 1' --json")
    assert failure.value.said.startswith("Error:")
    with pytest.raises(CommandFailed, match="exit code 2"):
        run("query nonsense", show=False)


@pytest.fixture(scope="module")
def planted_hub(tmp_path_factory):
    with LoopbackHub(make_world(tmp_path_factory.mktemp("world"))) as hub:
        yield hub


def test_a_study_from_crawl_to_answers_and_again(planted_hub, tmp_path, monkeypatch, capsys):
    subject = study.Subject(bases.BASES[1], BASE)
    monkeypatch.setattr(study, "REPRESENTATIONS", ("seed", "input"))
    asked = (
        bases.Question("purity-input", f"query purity --base {BASE}"),
        bases.Question("purity-none", f"query purity --base {BASE} --representation none"),
    )
    monkeypatch.setattr(study, "questions", lambda *_: asked)
    run = Terminal.of_hub(tmp_path, planted_hub.endpoint)
    base = study.build(run, subject, limit=9)
    assert base == BASE
    assert list(study.represent(run, [base])) == ["seed"]
    made = study.study(run, subject, base, 9, ".png")
    # Twelve models are planted, four a data set; nine are asked for, and every group is perfectly pure.
    assert (made.counts.indexed, made.counts.not_tried, made.counts.skipped, made.counts.failed) == (9, 3, 0, 0)
    assert (made.counts.datasets, made.counts.authors) == (3, 4)
    assert made.check is None
    assert made.answer("purity-input")["purity"] == 1.0
    assert "not published" in made.replies["purity-none"].error
    assert made.seconds["build"] > 0
    shown = capsys.readouterr().out
    assert f"$ index build --base {BASE} --spectra --limit 9" in shown
    assert f"$ query purity --base {BASE} --json" in shown

    study.build(run, subject, limit=9)
    assert list(study.represent(run, [base])) == ["seed"]
    again = study.study(run, subject, base, 9, ".png")
    shown = capsys.readouterr().out
    assert f"{BASE}: 2 questions, 1 of them answered before" in shown
    assert "index represent" not in shown
    assert f"$ query purity --base {BASE} --json" not in shown
    assert "--representation none" in shown  # what failed is asked again
    assert again.replies["purity-input"] == made.replies["purity-input"]


# ---------------------------------------------------------------- the command line


def test_options():
    options = command.parse([])
    assert (options.live, options.limit, options.size) == (False, None, "full")
    assert options.bases == [base.id for base in bases.BASES]
    assert command.parse(["--live"]).limit == command.LIVE_LIMIT
    assert command.parse(["--live", "--limit", "7", "--bases", "t5-base"]).limit == 7
    for wrong in (["--limit", "0"], ["--limit", "many"], ["--bases", "llama"], ["--figures", "gif"]):
        with pytest.raises(SystemExit) as end:
            command.parse(wrong)
        assert end.value.code == 2


@pytest.mark.parametrize(("missing", "extra"), [("peft", "demo"), ("umap", "studies")])
def test_a_missing_extra_is_named_before_anything_is_done(missing, extra, tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert command.main(["--out", str(tmp_path / "out")]) == 1
    assert f"vectors-in-the-wild[{extra}]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_says_that_it_goes_on(tmp_path, monkeypatch, capsys):
    def stop(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce", stop)
    assert command.main(["--live", "--out", str(tmp_path)]) == 130
    assert "goes on from here" in capsys.readouterr().err


# ---------------------------------------------------------------- slow: families, end to end


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_miniature_families_from_training_to_report(tmp_path, capsys):
    words = ["--size", "mini", "--bases", "t5-base", "gpt2-medium", "--families", str(tmp_path)]
    words += ["--out", str(tmp_path / "out"), "--figures", "svg"]
    assert command.main(words) == 0
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [one["base"] for one in told["bases"]] == ["atlas-demo/tiny-t5", "atlas-demo/tiny-gpt2"]
    for one in told["bases"]:
        assert one["check"]["misfits"] == []
        assert sum(kind["models"] for kind in one["check"]["kinds"]) == 10
        assert one["counts"]["indexed"] == 7
        for made in one["replies"].values():
            assert made["error"] is None, made
            assert made["file"] is None or (tmp_path / "out" / made["file"]).stat().st_size > 1000
    page = (tmp_path / "out" / "results.md").read_text()
    assert "| `decoder.cross_query` |" in page
    assert "(figures/purity.svg)" in page
    capsys.readouterr()
    assert command.main(words) == 0
    assert "$ query" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_families_of_every_architecture_end_as_expected_and_know_their_data(tmp_path):
    words = ["--size", "small", "--bases", "bert-base-uncased", "t5-base", "gpt2-medium"]
    assert command.main([*words, "--families", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    for one in json.loads((tmp_path / "out" / "results.json").read_text())["bases"]:
        assert one["check"]["misfits"] == [], one["base"]
        purity = one["replies"]["purity-input"]["answer"]
        assert purity["purity"] > 2 * purity["chance"], one["base"]
        assert purity["p_value"] < 0.01, one["base"]

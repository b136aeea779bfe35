"""Who is answered, what with, and how it begins and ends."""

from __future__ import annotations

import signal
import socket

import pytest

from query.browse.site import HEADERS
from tests.browse.planted import MERGED, PROFILED, indexed
from tests.browse.served import Served, publish_again
from tests.conftest import Shell
from tests.patience import wait_for
from tests.report.planted import EVIL


def query(folder, *words):
    return Shell("http://127.0.0.1:9", folder)("query", *words, "--atlas", str(folder))


def test_nothing_is_served_without_the_token(served):
    wrong = served.token[:-1] + ("a" if served.token[-1] != "a" else "b")
    for path in ("/", "/data", "/browse.js", f"/{wrong}/", f"/{wrong}/data", f"/{served.token[:-1]}/", f"//{served.token}/",
                 f"/x/{served.token}/", f"/?{served.token}", f"/%2e/{served.token}/data"):  # fmt: skip
        status, headers, body = served.ask(path)
        assert (status, body) == (403, b"Open the address that the command printed."), path
        assert {name: headers[name.lower()] for name in HEADERS} == HEADERS, path
    assert served.ask()[0] == 200


def test_no_other_host_is_answered(served):
    """Whatever name a stranger's page points at 127.0.0.1, the browser says it, and is refused."""
    port = served.host.partition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0", "[::1]", ""):
        assert served.ask(host=host or " ")[0] == 400, host
    for host in (f"localhost:{port}", "127.0.0.1", "localhost:9999"):  # the last through a tunnel
        assert served.ask(host=host)[0] == 200, host


def test_it_is_only_read(served):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert served.ask("data", method)[0] == 405, method
    assert served.ask("", "HEAD")[0] == 200


def test_no_file_is_named_by_an_address(served):
    for path in ("browse.html", "map.css", "../pyproject.toml", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "model/x",
                 "model/../state", "model//etc/passwd", "model/1/2", "load.js/", "static/load.js", "data/"):  # fmt: skip
        assert served.ask(path)[0] == 404, path
    for number in ("0", "999999", "99999999999999999999999"):
        status, _, body = served.ask(f"model/{number}")
        assert (status, b"error" in body) == (400, True)
    assert served.json("state", base="/etc/passwd") == served.json("state")


def test_every_answer_says_what_a_browser_may_do(served):
    for path in ("", "load.js", "browse.js", "browse.css", "data", "state", "model/1", "model/0", "nothing"):
        _, headers, _ = served.ask(path)
        assert {name: headers[name.lower()] for name in HEADERS} == HEADERS, path
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_the_columns_are_those_of_the_atlas(served, folder):
    told = served.columns()
    names = indexed(folder)
    assert len(told["models"]) == len(names) == 42
    assert [name for name in told["models"] if name in names][:3] == names[:3]
    facets = {one["name"]: one for one in told["facets"]}
    assert set(facets) >= {"dataset", "author", "licence", "relation", "cluster", "predicted", "oddity"}
    odd = facets["oddity"]
    of = [
        {odd["names"][code] for code in odd["codes"][odd["starts"][row] : odd["starts"][row + 1]]}
        for row in range(len(names))
    ]
    assert [names[row] for row in range(len(names)) if "copy of the base" in of[row]] == ["kim/copy0", "kim/copy1"]
    placed = [x == x for x in told["x"]]  # NaN where not on the map
    assert [names[row] for row, here in enumerate(placed) if not here] == [
        "kim/again", "kim/stranger", "kim/copy0", "kim/copy1",
    ]  # fmt: skip
    numbers = {one["name"]: one["values"] for one in told["numbers"]}
    assert numbers["norm"][:3] == pytest.approx([0.001, 0.002, 0.003])
    assert numbers["rank"][0] == pytest.approx((sum(range(2, 8)) + 6 * 5) / 12)
    assert told["parents"][MERGED - 1][0] == [1, names[1], "merge, weight 0.60; card: not declared"]
    near = [told["near"][told["nearStarts"][0] : told["nearStarts"][1]], told["similarities"], told["shares"]]
    listed = served.json("model/1")["neighbours"]
    assert [told["ids"][row] for row in near[0]] == [one["id"] for one in listed[:10]]
    assert near[1][:10] == pytest.approx([one["similarity"] for one in listed[:10]])
    assert near[2][:10] == pytest.approx(
        [one["background"] if one["background"] > one["background_floor"] else -999 for one in listed[:10]], rel=1e-5
    )


def test_what_is_known_of_a_model(served):
    told = served.json(f"model/{PROFILED}")
    assert told["facts"]["author"] == "author0"
    assert (len(told["layers"]["deltas"]), len(told["layers"]["families"])) == (12, 2)
    assert [len(told["depth"][whose]) for whose in ("layers", "base")] == [6, 6]
    assert told["evaluations"][0]["dataset_raw"] == EVIL[0]
    assert [one["id"] for one in told["lineage"]["children"]] == [MERGED]
    told = served.json(f"model/{MERGED}")
    assert [(one["id"], one["coefficient"]) for one in told["lineage"]["parents"]] == [(2, 0.6), (1, 0.4)]
    assert told["lineage"]["declared"] == ["far/away"]
    assert told["depth"] is None
    assert [one["dataset"] for one in served.json("model/2")["predictions"]] == ["data/set0", EVIL[0]]


def test_a_prediction_is_asked_by_number(served):
    told = served.json("predict/5")
    assert told["predictions"][0]["dataset"] == "data/set0"
    assert "error" in served.json("predict/0")


def test_conditions_and_statements_run_under_the_lock_of_sql(served):
    ids = served.json("sql", q="SELECT model_id FROM models WHERE downloads > 205 ORDER BY 1")["rows"]
    assert 0 < len(ids) < 40
    assert served.json("where", q="downloads > 205")["ids"] == [row[0] for row in ids]
    for wrong in ("1 = 1) OR (1 = 1", "true; DROP TABLE records", "length(getenv('HOME')) > 0", "", "x" * 20_001,
                  "(SELECT count(*) FROM read_text('/etc/passwd')) > 0"):  # fmt: skip
        assert "error" in served.json("where", q=wrong), wrong[:40]
    for wrong in ("DROP TABLE records", "COPY records TO '/tmp/x'", "FROM read_text('/etc/passwd')", "ATTACH 'x'", ""):
        assert "error" in served.json("sql", q=wrong), wrong
    told = served.json("sql", q="SELECT range AS n FROM range(5000)")
    assert (len(told["rows"]), told["truncated"]) == (1000, True)


def test_a_new_generation_is_noticed_and_shown_to_who_loads_again(own):
    with Served(own) as running:
        assert running.placed().json("state") == {"generation": 3, "isOvertaken": False, "places": "ready", "why": ""}
        publish_again(own)
        assert running.json("state")["isOvertaken"]
        assert running.json("state")["generation"] == 3
        assert running.columns()["generation"] == 3
        assert running.ask()[0] == 200  # whoever loads the page
        running.placed()
        told = running.columns()
        assert told["generation"] == 4
        assert next(one for one in told["numbers"] if one["name"] == "downloads")["values"][0] == 123456


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_when_told(folder, number, code):
    running = Served(folder)
    assert running.ask()[0] == 200
    ended, said = running.end(number)
    assert (ended, said.splitlines()[-1]) == (code, "Stopped: the page is no longer served.")
    assert len(said.splitlines()) == 2


def test_only_this_machine_and_a_port_of_ones_own(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = query(folder, "browse", "--no-open", "--port", str(port))
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"Error: Port {port} is in use. Leave --port out, and a free one is found.\n"
    with Served(folder, "--base", "paper-base") as running:
        assert running.printed.endswith("/#base=org%2Fpaper-base")
        assert running.host.startswith("127.0.0.1:")
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex(("127.0.0.2", int(running.host.partition(":")[2]))) != 0


def test_a_browser_is_started_with_a_ticket_that_is_good_once(folder, tmp_path, monkeypatch):
    """The list of processes, which everybody can read, does not hold the token."""
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened.part && mv {tmp_path}/opened.part {tmp_path}/opened\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    with Served(folder, "--open", "--base", "paper-base") as running:
        wait_for((tmp_path / "opened").exists)
        opened = (tmp_path / "opened").read_text().strip()
        assert running.token not in opened
        path = "/" + opened.partition("/")[2].partition("/")[2].partition("/")[2]
        status, headers, _ = running.ask(path)
        assert (status, headers["location"]) == (303, f"/{running.token}/#base=org%2Fpaper-base")
        assert running.ask(path)[0] == 403


def test_bad_input_is_one_line(folder, tmp_path):
    for options in (["--base", "no/such"], ["--port", "99999"], ["--method", "magic"]):
        ran = query(folder, "browse", "--no-open", *options)
        assert ran.code in (1, 2)
        assert "Error: " in ran.err
        assert "Traceback" not in ran.err
    ran = query(tmp_path, "browse", "--no-open")
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)

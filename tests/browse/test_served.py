"""Who is answered, what with, and how it begins and ends."""

from __future__ import annotations

import re
import select
import shutil
import signal
import socket
import time
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

import duckdb
import pytest

from query.faces.browse.server import HEADERS
from tests.atlas_builder import BASE
from tests.browse.atlases import MERGED, PROFILED, indexed, write_many
from tests.browse.served import ENDLESS, Served, children, publish_again, state_of
from tests.conftest import Shell
from tests.halves import a_few
from tests.patience import PATIENCE, wait_for
from tests.report.conftest import EVIL


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
    """A page of another name that points at 127.0.0.1 is refused: the browser sends that name."""
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
    answer = served.columns()
    names = indexed(folder)
    assert len(answer["models"]) == len(names) == 42
    assert [name for name in answer["models"] if name in names][:3] == names[:3]
    facets = {facet["name"]: facet for facet in answer["facets"]}
    assert set(facets) >= {"dataset", "author", "licence", "relation", "cluster", "predicted", "oddity"}
    odd = facets["oddity"]
    oddities_of = [{odd["names"][code] for code in codes} for codes in odd["codes"]]
    assert [names[row] for row in range(len(names)) if "copy of the base" in oddities_of[row]] == [
        "kim/copy0",
        "kim/copy1",
    ]
    placed = [x is not None for x in answer["x"]]
    assert [names[row] for row, is_placed in enumerate(placed) if not is_placed] == [
        "kim/again", "kim/stranger", "kim/copy0", "kim/copy1",
    ]  # fmt: skip
    numbers = {number["name"]: number["values"] for number in answer["numbers"]}
    assert numbers["norm"][:3] == pytest.approx([0.001, 0.002, 0.003])
    assert numbers["rank"][0] == pytest.approx((sum(range(2, 8)) + 6 * 5) / 12)
    assert answer["parents"][MERGED - 1][0] == [1, names[1], "merge, weight 0.60; card: not declared"]
    near = [answer["neighbours"][0][::2], answer["neighbours"][0][1::2], answer["backgrounds"][0]]
    listed = served.json("model/1")["neighbours"]
    assert [answer["ids"][row] for row in near[0]] == [neighbour["id"] for neighbour in listed[:10]]
    assert near[1][:10] == pytest.approx([neighbour["similarity"] for neighbour in listed[:10]], abs=1e-4)
    assert near[2][:10] == pytest.approx(
        [
            neighbour["background"] if neighbour["background"] > neighbour["background_floor"] else -999
            for neighbour in listed[:10]
        ],
        rel=5e-3,
    )


def test_what_is_known_of_a_model(served):
    answer = served.json(f"model/{PROFILED}")
    assert answer["facts"]["author"] == "author0"
    assert (len(answer["layers"]["deltas"]), len(answer["layers"]["families"])) == (12, 2)
    assert [len(answer["depth"][whose]) for whose in ("layers", "base")] == [6, 6]
    assert answer["evaluations"][0]["dataset_raw"] == EVIL[0]
    assert [child["id"] for child in answer["lineage"]["children"]] == [MERGED]
    answer = served.json(f"model/{MERGED}")
    assert [(parent["id"], parent["coefficient"]) for parent in answer["lineage"]["parents"]] == [(2, 0.6), (1, 0.4)]
    assert answer["lineage"]["declared"] == ["far/away"]
    assert answer["depth"] is None
    assert [prediction["dataset"] for prediction in served.json("model/2")["predictions"]] == ["data/set0", EVIL[0]]


def test_a_prediction_is_asked_by_number(served):
    answer = served.json("predict/5")
    assert answer["predictions"][0]["dataset"] == "data/set0"
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
    answer = served.json("sql", q="SELECT range AS n FROM range(5000)")
    assert (len(answer["rows"]), answer["truncated"]) == (1000, True)


def test_an_answer_in_sql_has_every_column_row_and_entry(served):
    """No number of rows bounds anything else: neither columns, nor the entries of a cell, nor its text."""
    answer = served.json("sql", q="SELECT 1 AS a, 2 AS b, 3 AS c")
    assert (answer["columns"], answer["rows"], answer["truncated"]) == (["a", "b", "c"], [[1, 2, 3]], False)
    assert served.json("sql", q="SELECT 1 AS a, 2 AS b WHERE false")["columns"] == ["a", "b"]
    answer = served.json("sql", q="SELECT range(700) AS l, repeat('x', 5000) AS t, {'a': range(3)} AS s")
    assert (answer["columns"], answer["rows"]) == (["l", "t", "s"], [[[*range(700)], "x" * 5000, {"a": [0, 1, 2]}]])
    assert served.json("sql", q="SELECT 9007199254740993")["rows"] == [
        ["9007199254740993"]
    ]  # no browser has that number
    answer = served.json("sql", q="SELECT " + ", ".join(f"{n} AS c{n}" for n in range(600)) + " FROM range(2)")
    assert ([len(row) for row in answer["rows"]], len(answer["columns"])) == ([600, 600], 600)


def test_what_a_page_leaves_out_is_counted(atlas_copy):
    """A list of the page of a model ends where nobody would read on, and says so; layers never end early."""
    with duckdb.connect(str(atlas_copy / "atlas.duckdb")) as connection:
        connection.execute("INSERT INTO tags SELECT 2, format('tag{:04}', n) FROM range(700) AS found(n)")
        connection.execute(
            "INSERT INTO lineage SELECT model_id, 'e', 2, 'tuned from', NULL, 1, 0, 'confirmed', 'known', '', [], 9, now(), 0.99 "
            "FROM range(10000, 10700) AS found(model_id)"
        )
        connection.execute(
            "INSERT INTO fine_tunes (model_id, model, base, author, status, relation) "
            "SELECT n, 'far/m' || n, ?, 'far', 'indexed', 'finetune' FROM range(10000, 10700) AS found(n)",
            [BASE],
        )
        connection.execute(
            "INSERT INTO deltas (model_id, stack, layer, family, out_features, in_features, norm, relative_norm, energy, "
            "singular_values, rank_50) SELECT 2, '', n, 'query', 8, 8, 1, 0.01, 0.5, [1.0], 1 FROM range(20, 620) AS found(n)"
        )
    with Served(atlas_copy) as running:
        answer = running.json("model/2")
    assert (len(answer["tags"]), answer["left"]) == (
        500,
        {"tags": 200, "children": 201},
    )  # one of them was in the atlas before
    assert len(answer["lineage"]["children"]) == 500
    assert len(answer["layers"]["deltas"]) == 612


@pytest.mark.slow
def test_errors_are_in_a_browsers_words(served, folder):
    """A reader of the page has no options and no arguments."""
    requests = [("sql", "SELECT nope FROM models"), ("sql", "SELECT * FROM nope"), ("sql", ""), ("sql", "x" * 20_001),
             ("where", "flavour = 3"), ("where", ""), ("where", "1 = "), ("sql", "SELECT repeat('x', 1000000) FROM range(90)"),
             ("sql", ENDLESS.replace("10000000000", "1000000000000000000000"))]  # fmt: skip
    answer = [served.json(path, q=text)["error"] for path, text in requests]
    answer += [served.json(f"{path}/0")["error"] for path in ("model", "predict")]
    for message in answer:
        assert not re.search(r"--|`|query sql|query \w+ |DESCRIBE|\bwhere\b '", message), message
        assert len(message) > 20
        assert message.endswith((".", "!", "?", ")", '"')), message
    with Served(folder, seconds=1.0) as running:
        late = running.json("sql", q="SELECT len(range(100000000)), " + ENDLESS.removeprefix("SELECT "))["error"]
    assert late in (
        "The statement took longer than 1 s. Narrow it.",
        "The statement needs more than the 1GB of memory it may have. Narrow it, or aggregate.",
    )


def test_a_new_generation_is_noticed_and_shown_after_a_reload(atlas_copy):
    with Served(atlas_copy) as running:
        assert running.wait_for_layout().json("state") == {
            "generation": 3,
            "isOvertaken": False,
            "places": "ready",
            "why": "",
        }
        publish_again(atlas_copy)
        assert running.json("state")["isOvertaken"]
        assert running.json("state")["generation"] == 3
        assert running.columns()["generation"] == 3
        assert running.ask()[0] == 200  # for each page that is loaded
        running.wait_for_layout()
        answer = running.columns()
        assert answer["generation"] == 4
        assert next(number for number in answer["numbers"] if number["name"] == "downloads")["values"][0] == 123456


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_on_request(folder, number, code):
    running = Served(folder)
    assert running.ask()[0] == 200
    code_at_end, printed = running.end(number)
    assert (code_at_end, printed.splitlines()[-1]) == (code, "Stopped: the page is no longer served.")
    assert len(printed.splitlines()) == 2


@contextmanager
def asking(running, *paths):
    """Connections on which each of ``paths`` was asked for, and no answer was waited for."""
    host, port = running.host.split(":")
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in paths]
        for connection, path in zip(opened, paths, strict=True):
            connection.sendall(f"GET /{running.token}/{path} HTTP/1.1\r\nHost: {running.host}\r\n\r\n".encode())
            connection.settimeout(PATIENCE)
        yield opened


@pytest.mark.parametrize("path", ["sql", "where"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_statement_does_not_delay_the_end(folder, number, code, path):
    running = Served(folder).wait_for_layout()
    question = ENDLESS if path == "sql" else f"({ENDLESS}) > 0"
    with asking(running, *[f"{path}?q={quote(question, safe='')}"] * 60):
        started = wait_for(lambda: children(running))
        began = time.monotonic()
        code_at_end, printed = running.end(number)
        assert time.monotonic() - began < 15  # a statement may take 20 s
    assert (code_at_end, printed.splitlines()[-1]) == (code, "Stopped: the page is no longer served.")
    assert len(printed.splitlines()) == 2
    wait_for(lambda: all(state_of(child)[0] == "Z" for child in started))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return write_many(tmp_path_factory.mktemp("large") / "atlas", 20_000)


@pytest.mark.parametrize("seconds", a_few([0.05, 0.6, 1.2], 1))
def test_nothing_else_delays_the_end(large, tmp_path, seconds):
    """Columns, places and a prediction are under way, or about to be."""
    running = Served(shutil.copytree(large, tmp_path / "atlas"))
    assert running.ask("icon.svg")[0] == 200
    with asking(running, "data", "predict/5", "state"):
        time.sleep(seconds)
        began, processes = time.monotonic(), children(running)
        code_at_end, printed = running.end(signal.SIGINT)
        assert time.monotonic() - began < 15
    assert (code_at_end, printed.splitlines()) == (
        130,
        ["press Ctrl-C to stop", "Stopped: the page is no longer served."],
    )
    wait_for(lambda: all(state_of(child)[0] == "Z" for child in processes))


def test_a_client_that_leaves_ends_its_statement(served):
    statement = f"sql?q={quote(ENDLESS, safe='')}"
    with asking(served, *[statement] * 12):
        wait_for(lambda: len(children(served)) == 2)
        first = children(served)
    wait_for(lambda: all(state_of(child)[0] == "Z" for child in first))
    began = time.monotonic()
    assert served.json("sql", q="SELECT 1 AS a")["rows"] == [[1]]
    assert time.monotonic() - began < 15
    wait_for(lambda: not children(served))


def test_the_number_of_waiting_statements_is_limited(served):
    statement = f"sql?q={quote(ENDLESS, safe='')}"
    with asking(served, *[statement] * 30) as opened:
        wait_for(lambda: len(children(served)) == 2)
        answers = wait_for(lambda: select.select(opened, [], [], 0.2)[0])
        assert len(answers) < 30
        assert answers[0].recv(99).startswith(b"HTTP/1.1 503 ")
        assert b"Too many requests" in answers[0].recv(9999)
        assert len(children(served)) == 2
        assert served.json("state")["generation"] == 3  # everything else is answered meanwhile
    wait_for(lambda: not children(served))


def test_a_prediction_ends_with_its_client(served):
    with asking(served, "predict/5"):
        wait_for(lambda: children(served))
    wait_for(lambda: not children(served))


def test_half_a_request_is_not_waited_for(served):
    halves = ["", "GET /", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: ",
              f"GET /{served.token}/state HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nx"]  # fmt: skip
    with ExitStack() as stack, asking(served, *["state"] * len(halves)) as opened:
        connections = []
        for sent, used in zip(halves, opened, strict=True):
            assert used.recv(9999).startswith(b"HTTP/1.1 200 ")
            fresh = stack.enter_context(socket.create_connection(used.getpeername(), timeout=PATIENCE))
            for connection in (used, fresh):  # the first request of a connection, and a second one
                connection.sendall(sent.encode())
                connections.append(connection)
        for connection in connections:
            while connection.recv(99999):
                pass


def test_only_local_connections_on_a_free_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        result = query(folder, "browse", "--no-open", "--port", str(port))
        assert (result.code, result.out) == (1, "")
        assert result.err == f"Error: Port {port} is in use. Omit --port to use any free port.\n"
    with Served(folder, "--base", "org/base") as running:
        assert running.printed.endswith("/#base=org%2Fbase")
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
    with Served(folder, "--open", "--base", "org/base") as running:
        wait_for((tmp_path / "opened").exists)
        opened = (tmp_path / "opened").read_text().strip()
        assert running.token not in opened
        path = "/" + opened.partition("/")[2].partition("/")[2].partition("/")[2]
        status, headers, _ = running.ask(path)
        assert (status, headers["location"]) == (303, f"/{running.token}/#base=org%2Fbase")
        assert running.ask(path)[0] == 403


def test_bad_input_is_one_line(folder, tmp_path):
    for options in (["--base", "no/such"], ["--port", "99999"], ["--method", "magic"]):
        result = query(folder, "browse", "--no-open", *options)
        assert result.code in (1, 2)
        assert "Error: " in result.err
        assert "Traceback" not in result.err
    result = query(tmp_path, "browse", "--no-open")
    assert (result.code, len(result.err.splitlines())) == (1, 1)

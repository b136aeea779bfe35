"""The page as a file: it holds everything, asks for nothing, sets strings as text, and runs nothing hostile."""

from __future__ import annotations

import json
import re

from query.questions.map.coloring import scaled
from query.questions.map.neighbours import NearPoint
from query.questions.map.page import SCRIPTS
from tests.map_page.example import IMAGE, ROWS, example_map


def test_the_page_holds_everything_and_asks_for_nothing():
    page = example_map().html()
    assert page == example_map().html()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "unsafe" not in policy
    assert not re.search(r"<(link|img|iframe|object|embed)|<[^>]*\ssrc=|@import|url\(", page.split('id="data"')[0])
    assert page.count("<script") == page.count("</script") == 2
    assert page.count("<!--") == 0
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert not re.search(r"[<>&\u2028\u2029]", data)
    assert json.loads(data) == json.loads(json.dumps(example_map().page_data()))


def test_strings_are_only_ever_set_as_text():
    from importlib.resources import files

    for name in SCRIPTS:
        script = (files("query.questions.map") / "pages" / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|setTimeout\(['\"]", script
        )
        assert "</script" not in script
        assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(", script)


def test_what_the_page_contains():
    data = example_map(coloring=scaled("downloads", [row[4] for row in ROWS])).page_data()
    assert data["onHub"] == [False, True, True, True, True, False, False]
    assert data["models"][6] == "eve/\\u202egnp\\u2028"
    assert data["neighbours"][0] == [1, 0.91, 2, 0.5]
    assert data["backgrounds"][:3] == [[0.0025, 0.4], [-399], [None]]
    assert example_map(neighbours=[[NearPoint(1, 0.5)]] * 7).page_data()["backgrounds"] is None
    datasets, authors, licences, _ = data["facets"]
    assert [licences["names"][code] if code >= 0 else None for code in licences["codes"]][:4] == [
        "apache-2.0",
        "mit",
        "mit",
        None,
    ]
    assert [[datasets["names"][code] for code in codes] for codes in datasets["codes"]] == [
        list(row[2]) for row in ROWS
    ]
    assert [authors["names"][code] for code in authors["codes"]] == [row[1] for row in ROWS]
    assert data["parents"] == [[[1, "ann/bert-mrpc", "merge, weight 0.40; card: confirmed"], [-1, "far/away", "merge, weight 0.60; card: not declared"]],
                               [[-1, f"org/{IMAGE}", "tuned from the base; card: confirmed"]], *[[]] * 5]  # fmt: skip
    assert example_map(parents={}).page_data()["parents"] is None
    assert data["colorings"][0]["values"] == [4, 1200, 7, 50, None, None, 0]
    assert data["axes"] is None
    shares = [*example_map(method="pca", explained_variance=(0.5, 0.25)).page_data()["axes"]]
    assert shares == [
        "principal component 1 (50.0 % of the variance)",
        "principal component 2 (25.0 % of the variance)",
    ]


# ---- nothing hostile runs, nothing is loaded


def test_nothing_hostile_would_run_or_reach_the_network(browser, file):
    browser.open(file)
    planted = browser.run("""
      const script = document.createElement("script");
      script.textContent = "window.planted = 1";
      document.body.append(script);
      const image = document.createElement("div");
      image.setAttribute("onclick", "window.planted = 1");
      document.body.append(image);
      image.click();
      return window.planted ?? null;""")
    assert planted is None
    error_name = browser.run("return fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)")
    assert error_name == "TypeError"
    refused = "\n".join(line for line in browser.console() if "Content Security Policy" in line)
    assert "inline script" in refused
    assert "inline event handler" in refused
    assert "http://127.0.0.1:9/" in refused
    assert browser.requests() == [file.as_uri()]

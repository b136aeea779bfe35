"""Nothing planted runs, nothing is loaded."""

from __future__ import annotations


def test_nothing_planted_would_run_or_reach_the_network(browser, file):
    browser.open(file)
    ran = browser.run("""
      const script = document.createElement("script");
      script.textContent = "window.planted = 1";
      document.body.append(script);
      const image = document.createElement("div");
      image.setAttribute("onclick", "window.planted = 1");
      document.body.append(image);
      image.click();
      return window.planted ?? null;""")
    assert ran is None
    asked = browser.run("return fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)")
    assert asked == "TypeError"
    refused = "\n".join(line for line in browser.console() if "Content Security Policy" in line)
    assert "inline script" in refused
    assert "inline event handler" in refused
    assert "http://127.0.0.1:9/" in refused
    assert browser.requests() == [file.as_uri()]

"""The site of docs/: every page is in its navigation, and it is built without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def in_navigation() -> list[str]:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"^ *- (?:[^:\n]+: )?(\S+\.md)$", navigation, re.MULTILINE)


def test_every_page_is_in_the_navigation_once():
    listed = in_navigation()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


def built(folder: Path, more: str = "") -> subprocess.CompletedProcess[str]:
    """Build a copy of the site in ``folder``, with ``more`` at the end of its first page."""
    pytest.importorskip("zensical", reason="the extra [docs] is not installed")
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    with (folder / "docs/index.md").open("a", encoding="utf-8") as page:
        page.write(more)
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    done = built(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in in_navigation():
        name = page.removesuffix(".md").removesuffix("index")
        assert (tmp_path / "site" / name / "index.html").is_file(), page
    text = (tmp_path / "site/guide/gallery/index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in text


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[x](nothing.md)", "[x](guide/trace.md#nowhere)"])
def test_a_broken_link_is_an_error(link, tmp_path):
    assert built(tmp_path, f"\n{link}\n").returncode != 0

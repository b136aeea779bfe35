"""What a person sees of the page."""

from __future__ import annotations


def middle(page):
    """The window's pixel where the first model lies."""
    box = page.run(
        "const b = document.getElementById('map').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def shown(page):
    return page.text("#shown summary")


def settle(page):
    """Until what was asked for is drawn."""
    page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def drawn(page):
    settle(page)
    return page.run("return document.getElementById('map').toDataURL()")

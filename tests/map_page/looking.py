"""What a person sees of the page."""

from __future__ import annotations


def middle(page):
    """The window's pixel where the first model lies."""
    box = page.run("const b = document.getElementById('map').getBoundingClientRect(); return [b.x, b.y]")
    place = page.run("return [screenX(0), screenY(0)]")
    return box[0] + place[0], box[1] + place[1]


def shown(page):
    return page.text("#shown summary")


def settle(page):
    """Until what was asked for is drawn."""
    page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def drawn(page):
    settle(page)
    return page.run("return document.getElementById('map').toDataURL()")

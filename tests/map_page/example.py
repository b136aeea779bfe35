"""A map of seven models, some of them hostile, and what a person sees of its page."""

from __future__ import annotations

from query.models.population import LeftOut
from query.questions.map.coloring import grouped
from query.questions.map.model_map import MapPoint, ModelMap
from query.questions.map.neighbours import NearPoint, Parent


def middle(page):
    """The window's pixel where the first model lies."""
    box = page.run("const b = document.getElementById('map').getBoundingClientRect(); return [b.x, b.y]")
    position = page.run("return [screenX(0), screenY(0)]")
    return box[0] + position[0], box[1] + position[1]


def shown_heading(page):
    return page.text("#shown summary")


def settle(page):
    """Until what was asked for is drawn."""
    page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def drawn(page):
    settle(page)
    return page.run("return document.getElementById('map').toDataURL()")


IMAGE = "<img src=x onerror=window.planted=1>"
SCRIPT = "</script><script>window.planted=1</script>"

# model, author, datasets, relation, downloads, x, y: the first lies in the middle of the map.
ROWS = [
    (f"{IMAGE}/{SCRIPT}", IMAGE, (SCRIPT, "<!--<script>"), "finetune", 4, 0, 0),
    ("ann/bert-mrpc", "ann", ("glue/mrpc",), "finetune", 1200, -2, 1),
    ("ann/bert-imdb", "ann", ("imdb",), "finetune", 7, -2, -1),
    ("bob/bert-imdb-lora", "bob", ("imdb",), "adapter", 50, 2, 1),
    ("bob/quiet", "bob", (), "finetune", None, 2, -1),
    ("/home/me/checkpoint", "local", ("imdb",), "finetune", None, 1, 0.5),
    ("eve/\u202egnp\u2028", "eve", ("glue/mrpc",), "merge", 0, -1, 0.5),
]
LICENCES = ["apache-2.0", "mit", "mit", None, IMAGE, None, "mit"]
NEIGHBOURS = [
    [NearPoint(1, 0.91, 0.0025), NearPoint(2, 0.5, 0.4)],
    [NearPoint(0, 0.91, 0.0025, 399)],
    [NearPoint(0, 0.5)],
    [NearPoint(5, 0.75)],
    [],
    [NearPoint(3, 0.75)],
    [],
]


# Of the first two models, by id: a merge with a parent that is on the map and one that is not, and a plain fine-tune.
PARENTS = {
    0: (Parent(1, "ann/bert-mrpc", "merge", 0.4, "confirmed"), Parent(99, "far/away", "merge", 0.6, "not declared")),
    1: (Parent(None, None, "tuned from the base", 1.0, "confirmed"),),
}


def example_map(rows=ROWS, neighbours=NEIGHBOURS, **options):
    groups = grouped("dataset", [row[2][0] if row[2] else None for row in rows])
    return ModelMap(
        base=f"org/{IMAGE}",
        representation="input",
        seed=0,
        points=tuple(
            MapPoint(
                number,
                model,
                author,
                relation,
                datasets,
                downloads,
                float(x),
                float(y),
                groups.name_of(number),
                None,
                LICENCES[number % len(LICENCES)],
            )
            for number, (model, author, datasets, relation, downloads, x, y) in enumerate(rows)
        ),
        **{
            "method": "umap",
            "coloring": groups,
            "left_out": LeftOut(unrelated=2),
            "notes": ("A note.",),
            "other_colorings": (grouped("author", [row[1] for row in rows]),),
            "neighbours": tuple(map(tuple, neighbours)),
            "parents": PARENTS,
            "hub": "http://hub.example:8080",
        }
        | options,
    )

"""Which models a forest has, which model each is made from, how and when; drawn once from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

FIRST_UPLOAD = datetime(2024, 1, 8, 9, tzinfo=UTC)
AUTHORS = ("quarry-labs", "mira-vantongeren", "okonkwo-nlp", "small-hours", "h-lindqvist", "papercut-ai")
LORA_FAMILIES = ("query", "value")
EVERY_FAMILY = ("query", "key", "value", "output", "feedforward1", "feedforward2")


@dataclass(frozen=True)
class Node:
    """One model. ``parents``: names of nodes, none if it was made from the base.

    ``kind``: tuned, continued, lora, merge or copy. ``how``: learning rate and steps of a training (and its recipe,
    optimiser and stored dtype, where it has a recipe), method and weights of a merge, or the form of a copy. ``hidden``:
    made, but never uploaded.
    """

    name: str
    kind: str
    created: datetime
    parents: tuple[str, ...] = ()
    dataset: str = ""
    seed: int = 0
    how: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    hidden: bool = False
    declared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How the models of one tree are trained. ``steps``: of the models tuned from the base; ``later``: of all others.

    ``optimiser``: a key of ``optimisers.OPTIMISERS``. ``stored``: the dtype of the upload. ``ranks``: of LoRA adapters,
    which are merged before the upload; none if all weights are trained.
    """

    name: str
    rates: tuple[float, float]
    steps: tuple[int, int] = (50, 90)
    later: tuple[int, int] = (30, 80)
    optimiser: str = "adamw"
    stored: str = "float32"
    ranks: tuple[int, ...] = ()


# Ways to train that no threshold was set on.
RECIPES = (
    Recipe("bf16, AdamW at 2e-5", (1.5e-5, 3e-5), (150, 250), (150, 250), stored="bfloat16"),
    Recipe("Adafactor", (2e-4, 6e-4), optimiser="adafactor"),
    Recipe("Lion", (3e-5, 1e-4), optimiser="lion"),
    Recipe("SGD with momentum", (2e-2, 8e-2), (80, 120), (60, 120), optimiser="sgd"),
    Recipe("long: 4 to 6 times the parent's steps", (1.5e-4, 4e-4), (35, 45), (180, 220)),
    Recipe("LoRA merged, 2e-4 to 8e-4", (2e-4, 8e-4), ranks=(4, 8, 16)),
    Recipe("LoRA merged, 2e-4 to 8e-4, bf16", (2e-4, 8e-4), stored="bfloat16", ranks=(4, 8, 16)),
)


@dataclass(frozen=True)
class Shape:
    """The number of models of each kind. ``tree``: roots, children of each root, grandchildren of each child.

    ``rates``: the learning rates of a sweep; ``seeds``: the number of seeds for each rate. ``resumed``: models continued
    from a run of a sweep by its author, on its data, within a day, every second one with its seed. ``swept``: models
    continued from a run of a sweep by any author on any data. ``recipes``: each has a tree of its own, as large as
    ``recipe_tree`` says, with siblings of its roots and ``recipe_orphans`` continued from a model never uploaded; and
    there is one tree more, in which every training has a recipe of its own.
    """

    tree: tuple[int, int, int] = (0, 0, 0)
    tuned: int = 0
    siblings: int = 0
    sweeps: int = 0
    orphans: int = 0
    loras: tuple[tuple[int, bool], ...] = ()  # rank, and whether on a fine-tune
    merges: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    steps: float = 1.0
    batch: int = 16  # texts or images of a step
    rates: tuple[float, ...] = (3e-4, 4.5e-4, 6e-4)
    seeds: int = 1
    resumed: int = 0
    swept: int = 0
    recipes: tuple[Recipe, ...] = ()
    recipe_tree: tuple[int, int, int] = (2, 2, 1)
    recipe_siblings: int = 1
    recipe_orphans: int = 3


MIXED = "each training another"
SHAPES: Mapping[str, Shape] = {
    "small": Shape(
        tree=(2, 2, 1),
        tuned=2,
        siblings=1,
        sweeps=1,
        orphans=1,
        loras=((4, False), (8, True)),
        merges={"linear": 1, "task_arithmetic": 1, "slerp": 1, "ties": 1, "dare": 1},
        copies={"plain": 1, "bfloat16": 1, "int8": 1, "nf4": 1},
        steps=0.5,
    ),
    # MoTHer's own: five trees of 21 nodes (Horwitz et al., 2025), here all of one base; and the other kinds.
    "full": Shape(
        tree=(5, 4, 4),
        tuned=4,
        siblings=4,
        sweeps=2,
        orphans=4,
        loras=((4, False), (8, False), (16, False), (8, False), (4, True), (8, True), (16, True)),
        merges={"linear": 8, "task_arithmetic": 8, "slerp": 6, "ties": 8, "dare": 6},
        copies={"plain": 3, "bfloat16": 4, "float16": 2, "int8": 5, "nf4": 5},
    ),
    # Mostly sweeps, and models continued from their runs, which are easily confused.
    "sweeps": Shape(
        tree=(3, 3, 2),
        tuned=3,
        siblings=4,
        sweeps=6,
        orphans=6,
        loras=((8, False), (8, True)),
        merges={"linear": 2, "task_arithmetic": 2, "slerp": 2, "ties": 2, "dare": 2},
        copies={"plain": 2, "bfloat16": 2, "int8": 2, "nf4": 1},
        rates=(1e-4, 2e-4, 3e-4, 6e-4, 1e-3),
        seeds=2,
        resumed=12,
        swept=12,
    ),
    # Trainings of other kinds (docs/evidence/arena.md).
    "recipes": Shape(recipes=RECIPES),
    "recipes-short": Shape(recipes=RECIPES, steps=0.6, batch=8),
}


def plan_forest(shape: Shape, datasets: tuple[str, ...], seed: int) -> list[Node]:
    """The nodes, each after those it is made from."""
    return _Planner(shape, datasets, seed).nodes()


class _Planner:
    def __init__(self, shape: Shape, datasets: tuple[str, ...], seed: int) -> None:
        self.shape, self.datasets, self.draw = shape, datasets, random.Random(seed)
        self.found: list[Node] = []

    def nodes(self) -> list[Node]:
        roots = [self._tuned("root", number) for number in range(self.shape.tree[0])]
        others = [self._tuned("tuned", number) for number in range(self.shape.tuned)]
        siblings = [
            self._tuned("sibling", number, dataset=roots[number % len(roots)].dataset)
            for number in range(self.shape.siblings)
        ]
        children = [self._continued(root, "child") for root in roots for _ in range(self.shape.tree[1])]
        grand = [self._continued(child, "grandchild") for child in children for _ in range(self.shape.tree[2])]
        sweeps = [run for number in range(self.shape.sweeps) for run in self._sweep(number)]
        self._orphans()
        for number in range(self.shape.resumed):
            self._resumed(self.draw.choice(sweeps), is_same_seed=number % 2 == 0)
        for _ in range(self.shape.swept):
            self._continued(self.draw.choice(sweeps), "swept")
        loras = [self._lora(rank, self.draw.choice(roots + others) if on else None) for rank, on in self.shape.loras]
        sources = roots + others + siblings + children
        merges = [
            self._merge(method, number, sources)
            for method, count in self.shape.merges.items()
            for number in range(count)
        ]
        whole = [*sources, *grand, *sweeps, *loras, *merges]
        for form, count in self.shape.copies.items():
            for _ in range(count):
                self._copy(form, self.draw.choice(whole))
        for recipe in self.shape.recipes:
            self._recipe(recipe.name, (recipe,))
        if self.shape.recipes:
            self._recipe(MIXED, self.shape.recipes)
        return self.found

    def _recipe(self, name: str, recipes: tuple[Recipe, ...]) -> None:
        """A tree whose trainings have one of these recipes each, with siblings and models without a parent here."""

        def trained(group: str, dataset: str, parent: Node | None = None, *, hidden: bool = False) -> Node:
            recipe = self.draw.choice(recipes)
            how = self._training(recipe.rates, recipe.later if parent else recipe.steps)
            how |= {"recipe": name, "optimiser": recipe.optimiser, "stored": recipe.stored}
            if recipe.ranks:
                rank = self.draw.choice(recipe.ranks)
                how |= {"rank": rank, "families": EVERY_FAMILY if rank == 8 else LORA_FAMILIES}
            kind = "lora" if recipe.ranks else "continued" if parent else "tuned"
            above = (parent,) if parent else ()
            seed = self.draw.randrange(10**6)
            return self._add(group, kind, above, dataset=dataset, seed=seed, how=how, hidden=hidden)

        def after(parent: Node, group: str) -> Node:
            same = self.draw.random() < 0.25
            return trained(group, parent.dataset if same else self.draw.choice(self.datasets), parent)

        roots, children, grandchildren = self.shape.recipe_tree
        first = [trained("root", self.draw.choice(self.datasets)) for _ in range(roots)]
        for number in range(self.shape.recipe_siblings):
            trained("sibling", first[number % roots].dataset)
        for root in first:
            for _ in range(children):
                child = after(root, "child")
                for _ in range(grandchildren):
                    after(child, "grandchild")
        # Two of these have one parent: the hard case.
        parent: Node | None = None
        for number in range(self.shape.recipe_orphans):
            if parent is None or number % 3 != 1:
                parent = trained("hidden", self.draw.choice(self.datasets), hidden=True)
            after(parent, "orphan")

    def _add(self, group: str, kind: str, parents: tuple[Node, ...], **facts: Any) -> Node:
        number = len(self.found)
        after = max((one.created for one in parents), default=FIRST_UPLOAD)
        created = facts.pop("created", None) or after + timedelta(hours=self.draw.uniform(3, 400))
        author = facts.pop("author", None) or self.draw.choice(AUTHORS)
        names = tuple(one.name for one in parents)
        # Most cards name no parents, some name the right ones, and a few name another model.
        says, declared = self.draw.random(), ()
        if says < 0.3:
            declared = names
        elif says < 0.36 and self.found:
            declared = (self.draw.choice(self.found).name,)
        name = f"{author}/{group}-{number:03d}"
        node = Node(name, kind, created, names, group=group, declared=declared, **facts)
        self.found.append(node)
        return node

    def _training(self, rates: tuple[float, float], steps: tuple[int, int]) -> dict[str, Any]:
        low, high = rates
        rate = low * (high / low) ** self.draw.random()
        return {"learning_rate": rate, "steps": max(4, round(self.shape.steps * self.draw.randint(*steps)))}

    def _tuned(self, group: str, number: int, dataset: str | None = None, **facts: Any) -> Node:
        how = self._training((3e-4, 8e-4), (50, 90))
        chosen = dataset or self.datasets[number % len(self.datasets)]
        return self._add(group, "tuned", (), dataset=chosen, seed=self.draw.randrange(10**6), how=how, **facts)

    def _continued(self, parent: Node, group: str, **facts: Any) -> Node:
        how = self._training((1.5e-4, 6e-4), (30, 80))
        if self.draw.random() < 0.1:
            how["frozen"] = 2
        dataset = parent.dataset if self.draw.random() < 0.25 else self.draw.choice(self.datasets)
        seed = self.draw.randrange(10**6)
        return self._add(group, "continued", (parent,), dataset=dataset, seed=seed, how=how, **facts)

    def _sweep(self, number: int) -> list[Node]:
        """Runs with one author, day, dataset and length, and every learning rate with every seed.

        Every third sweep of more than three runs varies the length instead of the rate.
        """
        author, first = self.draw.choice(AUTHORS), self.draw.randrange(10**6)
        dataset = self.datasets[-1 - number % len(self.datasets)]
        created = FIRST_UPLOAD + timedelta(days=10 + number)
        rates = self.shape.rates
        lengths = (40, 55, 70, 90, 120) if number % 3 == 2 and len(rates) > 3 else (70,)
        runs = [(rate, length) for rate in (rates if len(lengths) == 1 else (4e-4,)) for length in lengths]
        runs = [(seed, *run) for seed in range(first, first + self.shape.seeds) for run in runs]
        return [
            self._add("sweep", "tuned", (), dataset=dataset, seed=seed, author=author,
                      created=created + timedelta(minutes=20 * place),
                      how={"learning_rate": rate, "steps": max(4, round(length * self.shape.steps))})
            for place, (seed, rate, length) in enumerate(runs)
        ]  # fmt: skip

    def _resumed(self, parent: Node, *, is_same_seed: bool) -> None:
        """A run of a sweep trained on by its author, on the same data, hours later."""
        seed = parent.seed if is_same_seed else self.draw.randrange(10**6)
        self._add("resumed", "continued", (parent,), dataset=parent.dataset, seed=seed,
                  author=parent.name.partition("/")[0],
                  created=parent.created + timedelta(hours=self.draw.uniform(1, 20)),
                  how=self._training((1e-4, 8e-4), (30, 80)))  # fmt: skip

    def _orphans(self) -> None:
        """Models continued from models that were never uploaded; two with the same such parent are the hard case."""
        parent: Node | None = None
        for number in range(self.shape.orphans):
            if parent is None or number % 3 != 1:
                parent = self._tuned("hidden", number, hidden=True)
            self._continued(parent, "orphan")

    def _lora(self, rank: int, parent: Node | None) -> Node:
        families = EVERY_FAMILY if rank == 8 and parent is None else LORA_FAMILIES
        how = {"rank": rank, "families": families, "learning_rate": 4e-3, "steps": max(4, round(60 * self.shape.steps))}
        chosen, seed = self.draw.choice(self.datasets), self.draw.randrange(10**6)
        return self._add("lora", "lora", (parent,) if parent else (), dataset=chosen, seed=seed, how=how)

    def _merge(self, method: str, number: int, sources: list[Node]) -> Node:
        count = 2 if method == "slerp" else 2 + number % 3
        parents = tuple(self.draw.sample(sources, count))
        weights = [self.draw.uniform(0.4, 1.0) for _ in parents]
        how: dict[str, Any] = {"method": method, "stored": ("float32", "float32", "bfloat16", "float16")[number % 4]}
        if method == "linear":
            how["weights"] = [weight / sum(weights) for weight in weights]
        elif method == "task_arithmetic":
            how["weights"] = weights
        elif method == "slerp":
            # One share for all matrices, or mergekit's usual gradients, which differ by layer and family.
            how["weights"] = [self.draw.uniform(0.3, 0.7)] if number % 2 else [0.2, 0.7, 0.4, 0.6]
        else:
            how |= {"weights": weights, "density": (0.5, 0.3, 0.6, 0.2)[number % 4], "seed": number}
        return self._add(method, "merge", parents, how=how)

    def _copy(self, form: str, of: Node) -> None:
        self._add(form, "copy", (of,), dataset=of.dataset, how={"form": form})

"""Trees in a build: what is new in them, what the models are called, which base each has, and where they lie."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import find_base
from indexer.builds.options import WorkOptions
from indexer.builds.report import Watcher
from indexer.checkpoints.ahead import in_threads
from indexer.errors import AtlasError, ModelError
from indexer.listing.listing import ListedModel, Listing
from indexer.listing.trees import KnownPlace, KnownTree, KnownTrees
from indexer.names import MOST_STEPS
from indexer.network.rate_limit import limit_bandwidth
from indexer.quantities import some_of
from indexer.sources.addresses import file_system, is_gone
from indexer.sources.claims import BY_FOLDER, Claim, stated_bases
from indexer.sources.file_systems import VANISHED, FileSystem
from indexer.sources.local_names import LOCAL, free_name, hash_of, name_of_words
from indexer.sources.registry import ModelRef, source_of
from indexer.sources.runs import RUN
from indexer.sources.source import BaseFacts, Row
from indexer.sources.tree import TreeListing, TreeModel, list_tree
from indexer.sources.tree_rows import TreeFacts, base_among, described
from indexer.untrusted import printable

_THREADS = 4  # that read small files of this machine
_STORED_AT_ONCE = 500  # models, so that a build that is killed goes on
_MOST_WORDS = 3  # more that a name may have, so that it needs no number
# How many of the ids that models of trees name as their bases are looked up, the most frequent first; and where the
# bases are given, how many others, which may have been made from them.
_MOST_BASES, _MOST_FOREIGN = 200, 20


@dataclass(frozen=True)
class PlacedModel:
    """A model of a tree as it is now. ``row``: its listing row, if it is new or has changed."""

    model: TreeModel
    known: KnownPlace
    row: Row | None


@dataclass
class Tree:
    """One place that a build reads from, listed."""

    known: KnownTree
    files: FileSystem
    listing: TreeListing
    options: tuple[tuple[str, object], ...] = ()
    before: dict[str, KnownPlace] = field(default_factory=dict)
    models: list[PlacedModel] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)  # models that may be there and could not be read now

    def place_of(self, model: TreeModel) -> str:
        """Identifies the place of a model without its path."""
        return hash_of(f"{self.files.address}/{model.path}" if model.path else self.files.address)

    def may_hide(self, known: KnownPlace) -> bool:
        """Whether a model that was not found may be in a folder that could not be listed."""
        problems = self.listing.problems
        return bool(problems.unseen) if known.path is None else problems.hides(known.path)

    def run_of(self, model: TreeModel) -> Row | None:
        """The run that a model is a checkpoint of, as a listing row has it; None if it is of none."""
        if model.checkpoint is None:
            return None
        return {"key": hash_of(f"{self.files.address}/{model.checkpoint.run}"), "number": model.checkpoint.number}

    def row(self, model: TreeModel, known: KnownPlace, facts: Row) -> Row:
        """The listing row of a model, of which its files state these facts."""
        author = known.model.partition("/")[0] if model.hub_id else self.known.author
        row = facts | {"id": known.model, "folder": known.place, "author": author}
        run = self.run_of(model)
        return row if run is None else row | {RUN: run}

    def is_listed(self, listed: ListedModel | None, placed: PlacedModel) -> bool:
        """Whether a listing shows a model of this tree already, at the version and of the run that it has there."""
        return (
            listed is not None
            and self.known.question in listed.claims
            and listed.row.get("sha") == placed.known.facts.version
            and listed.row.get(RUN) == self.run_of(placed.model)
        )

    def reference(self, placed: PlacedModel) -> ModelRef:
        """The model with the place where it lies."""
        return placed.model.reference(placed.known.model, self.files, self.options)


class Trees:
    """The trees of a build. The caller holds the lock of the writer."""

    def __init__(self, folder: AtlasFolder, options: WorkOptions, watcher: Watcher) -> None:
        self.folder = folder
        self.options = options
        self.watcher = watcher
        self.known = KnownTrees(folder)
        self.trees: list[Tree] = []
        self._before = {tree.tree: tree for tree in self.known.trees()}
        self._places = self.known.places()
        self._names: dict[str, str] = {}  # name → place
        self._of_places: dict[str, str] = {}  # place → name
        self._here: set[str] = set()  # the places of models that are there now
        self._in_use: set[str] = set()  # names of models that are where they were
        self._known: dict[str, list[tuple[str, KnownPlace]]] = {}  # by version, with the tree
        self._moved: list[tuple[str, str]] = []  # question and model, of trees that are not listed now
        self._left_behind: dict[str, list[KnownPlace]] = {}  # former places of models that have moved, by tree

    def sorted_models(
        self, given: Sequence[BaseFacts], fetch: Callable[[BaseFacts, bool], object] | None = None
    ) -> tuple[list[BaseFacts], Sorted]:
        """List all places; the bases of their models, and which model has which base. Says what is left out.

        The bases are those ``given``, else those that the models name. ``fetch``: see :meth:`sort`. Raises AtlasError
        if no place can be listed.
        """
        self.read()
        bases, made_from = self._bases(given)
        models = self.sort(bases, made_from, fetch, trusts_shapes=bool(given))
        for sentence in models.sentences():
            self.watcher.say(sentence)
        return bases, models

    def read(self) -> None:
        """List all places, and describe what is new in them. Raises AtlasError if none can be listed."""
        limit_bandwidth(str(self.folder.root), self.options.bytes_per_second)
        problems, before = [], self._before
        for address in self.options.addresses:
            try:
                files = file_system(address, self.options.file_system_options)
                self.watcher.listed(f"listing {printable(address, 120)}")
                listing = list_tree(files, lambda count: self.watcher.listed(f"{count:,} models so far"))
            except AtlasError as error:
                problems.append(error)
                continue
            key = hash_of(files.address)
            if any(tree.known.tree == key for tree in self.trees):
                continue
            author = before[key].author if key in before and self.options.author is None else self.options.author
            now = datetime.now(UTC).isoformat()
            known = KnownTree(key, files.address, author or "", now)
            options = tuple(self.options.file_system_options.items()) if files.is_remote else ()
            tree = Tree(known, files, listing, options, self._places.get(key, {}))
            if key in before and before[key].author != known.author:  # rows name the author
                tree.before = {place: replace(placed, fingerprint="") for place, placed in tree.before.items()}
            self.trees.append(tree)
        if problems and not self.trees:
            raise problems[0]
        for problem in problems:
            self.watcher.say(f"{problem} Its models stay as they were.")
        self._collect_names()
        for tree in self.trees:
            self._here |= {tree.place_of(model) for model in tree.listing.models}
        for key, places in self._places.items():
            for place, placed in places.items():
                self._known.setdefault(placed.facts.version, []).append((key, placed))
                if place in self._here:
                    self._in_use.add(placed.model)
        seen: set[str] = set()
        for tree in self.trees:
            self._settle(tree, seen)
            for sentence in tree.listing.problems.sentences():
                self.watcher.say(sentence)

    def _collect_names(self) -> None:
        """The names in use, each with its place."""
        for path in sorted(self.folder.listings.glob("*.sqlite")):
            for placed in Listing(path).models():
                if placed.claimed_by == BY_FOLDER and placed.id.startswith(LOCAL):
                    self._names[placed.id] = str(placed.row.get("folder", ""))
        for places in self._places.values():
            self._names |= {placed.model: place for place, placed in places.items()}
            self._of_places |= {place: placed.model for place, placed in places.items()}
        self._of_places |= {place: name for name, place in self._names.items()}

    def _moved_from(self, version: str) -> tuple[str, KnownPlace] | None:
        """The tree and the former place of a model with this content that is not there any more; None for no such."""
        listed = {tree.known.tree: tree for tree in self.trees}
        for key, placed in self._known.get(version, ()):
            if placed.place in self._here or placed.model in self._in_use:
                continue
            if key in listed:
                has_gone = not listed[key].may_hide(placed)
            else:
                address = self._before[key].address if key in self._before else None
                has_gone = not placed.is_here or (
                    address is not None and placed.path is not None and is_gone(address, placed.path)
                )
            if has_gone:
                return key, placed
        return None

    def _settle(self, tree: Tree, seen: set[str]) -> None:
        """Give every model of a tree its name, and describe those that are new or have changed."""
        places = [tree.place_of(model) for model in tree.listing.models]
        new: list[tuple[TreeModel, str]] = []
        settled: dict[str, PlacedModel] = {}
        for model, place in zip(tree.listing.models, places, strict=True):
            before = tree.before.get(place)
            if place in seen or (model.hub_id and model.hub_id in seen):
                continue
            seen |= {place, model.hub_id} - {""}
            if before is not None and before.fingerprint == model.fingerprint:
                settled[place] = PlacedModel(model, before, None)
            else:
                new.append((model, place))
        here = {place: placed for place, placed in tree.before.items() if placed.is_here and place not in seen}
        left = {place for place, placed in here.items() if not tree.may_hide(placed)}
        tree.kept |= {here[place].model for place in here.keys() - left}
        wanted = self._short_names(tree, new)
        stored: list[KnownPlace] = []
        for (model, place), found in zip(new, self._described(tree, [model for model, _ in new]), strict=True):
            before = tree.before.get(place)
            if isinstance(found, ModelError):
                has_changed = found.reason in ("file_changed", "not_found")
                kind = VANISHED if has_changed else f"models that could not be read ({found.reason})"
                tree.listing.problems.note(kind, model.path)
                if before is not None:
                    tree.kept.add(before.model)
                continue
            facts, row = found
            name = model.hub_id or (before.model if before else "")
            if not name and (moved := self._moved_from(facts.version)) is not None:
                name = self._move(*moved, place)
                left.discard(moved[1].place)
            name = name or self._name(wanted[place], place)
            self._in_use.add(name)
            known = KnownPlace(place, model.path, name, model.fingerprint, facts)
            settled[place] = PlacedModel(model, known, tree.row(model, known, row))
            stored.append(known)
            if len(stored) >= _STORED_AT_ONCE:
                self._store(tree, stored)
                stored = []
        tree.models = [settled[place] for place in places if place in settled]
        stored += [replace(tree.before[place], is_here=False) for place in left]
        stored += [replace(placed.known, is_here=True) for placed in tree.models if not placed.known.is_here]
        self._store(tree, stored)

    def _move(self, key: str, before: KnownPlace, place: str) -> str:
        """The name of a model that lies at another ``place`` now, ``before`` in the tree ``key``."""
        self._names[before.model] = place
        self._left_behind.setdefault(key, []).append(replace(before, fingerprint="", is_here=False))
        if key in self._before and all(tree.known.tree != key for tree in self.trees):
            self._moved.append((self._before[key].question, before.model))
        return before.model

    def _described(self, tree: Tree, models: Sequence[TreeModel]) -> Iterator[tuple[TreeFacts, Row] | ModelError]:
        def describe(model: TreeModel) -> tuple[TreeFacts, Row] | ModelError:
            try:
                return described(model, tree.files)
            except ModelError as error:
                return error

        threads = self.options.connections if tree.files.is_remote else _THREADS
        for number, found in enumerate(in_threads([partial(describe, model) for model in models], threads), 1):
            if number % 100 == 0:
                self.watcher.listed(f"{number:,} of {len(models):,} new or changed models looked at")
            yield found

    def _short_names(self, tree: Tree, new: Sequence[tuple[TreeModel, str]]) -> dict[str, str]:
        """By place, the shortest name that no other new model of the tree would get."""
        waiting = {place: model.words for model, place in new if not model.hub_id}
        names_by_place: dict[str, str] = {}
        for more in range(_MOST_WORDS + 1):
            names = {place: name_of_words(words, more) for place, words in waiting.items()}
            counts = Counter(names.values())
            for place, name in names.items():
                if counts[name] == 1 and (name not in self._names or self._names[name] == place):
                    names_by_place[place] = name
                    del waiting[place]
        return names_by_place | {place: name_of_words(words) for place, words in waiting.items()}

    def _name(self, wanted: str, place: str) -> str:
        """The name of a model that has none: that which its place has, else a new one."""
        if self._names.get(wanted) == place:
            return wanted
        name = self._of_places.get(place) or free_name(wanted, self._names)
        self._names[name], self._of_places[place] = place, name
        return name

    def _store(self, tree: Tree, places: Iterable[KnownPlace]) -> None:
        self.known.note(tree.known, places, without_paths=not self.options.paths)
        listed = {tree.known.tree: tree.known for tree in self.trees}
        for key, former in self._left_behind.items():
            if (known := listed.get(key) or self._before.get(key)) is not None:
                has_no_paths = not self.options.paths if key in listed else known.address is None
                self.known.note(known, former, without_paths=has_no_paths)
        self._left_behind.clear()

    # ---- bases

    def named_bases(self) -> list[str]:
        """The ids that models give as their bases, the most frequent first, and bases that the trees had models of."""
        counts = Counter(
            named
            for tree in self.trees
            for placed in tree.models
            if (named := base_among(placed.known.facts, "", {})[1])
        )
        shown = {tree.known.question for tree in self.trees}
        for path in sorted(self.folder.listings.glob("*.sqlite")):
            listing = Listing(path)
            if listing.ids() and any(not shown.isdisjoint(placed.claims) for placed in listing.models()):
                counts[listing.ids()[0]] += 0
        return sorted(counts, key=lambda name: (-counts[name], name))

    def _bases(self, given: Sequence[BaseFacts]) -> tuple[list[BaseFacts], dict[str, str]]:
        """The bases of models of trees: those ``given``, else those that the models name, as far as they can be used.

        Also the base by the id of a fine-tune, in lower case, that models name and that was made from one of these
        bases. A base that more models name than its own base stays one.
        """
        bases = {facts.id: facts for facts in given}
        made_from: dict[str, str] = {}
        unusable: list[str] = []
        for name in self.named_bases()[: _MOST_FOREIGN if given else _MOST_BASES]:
            if any(name.lower() in map(str.lower, facts.ids) for facts in bases.values()):
                continue
            try:
                facts = find_base(self.folder, name)
            except AtlasError as error:
                unusable.append(error.message.rstrip("."))
                continue
            ancestor = _ancestor(self.folder, facts, bases)
            if ancestor is not None:
                made_from |= dict.fromkeys(map(str.lower, facts.ids), ancestor)
            elif not given:
                bases[facts.id] = facts
        if unusable and not given:
            self.watcher.say(
                f"bases that models name and that cannot be used: {len(unusable)} ({some_of(unusable, 3)})"
            )
        return list(bases.values()), made_from

    def sort(
        self,
        bases: Sequence[BaseFacts],
        made_from: Mapping[str, str],
        fetch: Callable[[BaseFacts, bool], object] | None = None,
        *,
        trusts_shapes: bool = False,
    ) -> Sorted:
        """Which model has which base: the one that its files name, else the one that its weights tell.

        - ``made_from``: the base by the id, in lower case, of a fine-tune of it.
        - ``fetch`` makes the matrices of a base available, to compare with; it is called with whether models name the
          base. None: only what the atlas holds is compared.
        - ``trusts_shapes``: the base of an adapter may be told by the shapes of its factors alone, because a person
          has said which bases are meant.
        """
        sorted_models = Sorted({facts.id: [] for facts in bases})
        listings = {facts.id: Listing(self.folder.listing(facts.id)) for facts in bases}
        listed = {base: {model.id: model for model in listing.models()} for base, listing in listings.items()}
        ids: dict[str, Collection[str]] = {}
        members = dict(made_from)
        for facts in bases:
            mirrors = source_of(facts.id).mirrors(facts.ids)
            ids[facts.id] = (*facts.ids, *mirrors, *listings[facts.id].copies())
            members |= {name.lower(): facts.id for name in listed[facts.id] if not name.startswith(LOCAL)}
        itself = {name.lower() for facts in bases for name in facts.ids}
        counts = {tree.known.tree: Counter[str]() for tree in self.trees}
        unnamed: list[tuple[Tree, PlacedModel]] = []
        stated_others: dict[str, str] = {}  # by the place of a conversion, the model that it names
        for tree in self.trees:
            of_tree = counts[tree.known.tree]
            for placed in tree.models:
                name = placed.known.model
                if placed.model.hub_id.lower() in itself:
                    of_tree["bases"] += 1
                    continue
                base, other = base_among(placed.known.facts, name, ids)
                if base is None and other is not None:
                    base = members.get(other.lower())
                # What a conversion names is the model that was converted, as often as its base.
                is_told_by_weights = other is None or placed.known.facts.relation == "quantized"
                if base is None and is_told_by_weights:
                    base = next((base for base in listed if tree.is_listed(listed[base].get(name), placed)), None)
                if base is not None:
                    of_tree["models"] += 1
                    sorted_models.of[base].append((tree, placed))
                elif other is not None and not is_told_by_weights:
                    of_tree["another_base"] += 1
                    sorted_models.others.append((name, other))
                else:
                    unnamed.append((tree, placed))
                    if other is not None:
                        stated_others[placed.known.place] = other
        tried = self._identify(unnamed, bases, sorted_models, fetch, trusts_shapes) if unnamed and bases else {}
        for tree, placed in unnamed:
            base, other = tried.get(placed.known.place), stated_others.get(placed.known.place)
            counts[tree.known.tree]["models" if base else "another_base" if other else "base_not_named"] += 1
            if base:
                sorted_models.of[base].append((tree, placed))
            elif other:
                sorted_models.others.append((placed.known.model, other))
            else:
                sorted_models.unnamed.append(placed.known.model)
        for tree in self.trees:
            of_tree = counts[tree.known.tree]
            of_tree["problems"] = sum(tree.listing.problems.counts.values())
            tree.known = replace(tree.known, counts=dict(of_tree))
            self._store(tree, ())
        return sorted_models

    def _identify(
        self,
        unnamed: Sequence[tuple[Tree, PlacedModel]],
        bases: Sequence[BaseFacts],
        sorted_models: Sorted,
        fetch: Callable[[BaseFacts, bool], object] | None,
        trusts_shapes: bool,
    ) -> dict[str, str]:
        """The bases that weights tell, by the place of the model. What was tried in vain is not tried again."""
        from indexer.deltas.identification.identify import identify, known_bases  # imports torch

        if fetch is not None:
            for facts in bases:
                fetch(facts, bool(sorted_models.of[facts.id]))
        ids = {facts.id for facts in bases}
        known = [base for base in known_bases(self.folder) if base.base in ids]
        if not known:
            return {}
        compared = "\n".join([*sorted(base.base for base in known), str(trusts_shapes)])
        now_tried = hashlib.sha256(compared.encode()).hexdigest()[:16]
        results: dict[str, str] = {}
        for number, (tree, placed) in enumerate(unnamed, 1):
            if placed.known.tried == now_tried:
                continue
            if number % 10 == 0:
                self.watcher.listed(f"{number:,} of {len(unnamed):,} models that name no base compared")
            try:
                answer = identify(tree.reference(placed), known)
            except ModelError:
                answer = None  # reading it says why, if a base is known
            is_by_shapes = answer is not None and answer.base is not None and answer.candidates[0].basis == "shapes"
            if answer is not None and answer.base is not None and (trusts_shapes or not is_by_shapes):
                results[placed.known.place] = answer.base
                if is_by_shapes:
                    sorted_models.by_shapes.append(placed.known.model)
            else:
                self._store(tree, [replace(placed.known, tried=now_tried)])
        return results

    def update(self, listing: Listing, base: str, models: Sequence[tuple[Tree, PlacedModel]]) -> tuple[int, int]:
        """Bring the listing of a base up to date; returns how many models are new, and how many have left for good."""
        listed = {one.id: one for one in listing.models()}
        new = gone = 0
        for tree in self.trees:
            question = tree.known.question
            of_tree = {one.known.model: one for of, one in models if of is tree}
            shown = [
                (self._row(tree, one), Claim(one.known.facts.relation, BY_FOLDER, base))
                for one in of_tree.values()
                if one.row is not None or not tree.is_listed(listed.get(one.known.model), one)
            ]
            left = [
                name for name, one in listed.items()
                if question in one.claims and name not in of_tree and name not in tree.kept
            ]  # fmt: skip
            if shown or left:
                counts = listing.update_place(question, shown, left)
                new, gone = new + counts[0], gone + counts[1]
        for question, name in self._moved:
            if name in listed and question in listed[name].claims:
                gone += listing.update_place(question, (), [name])[1]
        return new, gone

    def _row(self, tree: Tree, one: PlacedModel) -> Row:
        if one.row is not None:
            return one.row
        _, facts = described(one.model, tree.files)
        return tree.row(one.model, one.known, facts)


@dataclass
class Sorted:
    """The models of trees by base: those of each, those of ``others`` with the base that they name, and ``unnamed``.

    ``by_shapes``: those whose base only the shapes of their factors tell.
    """

    of: dict[str, list[tuple[Tree, PlacedModel]]]
    others: list[tuple[str, str]] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    by_shapes: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """What is not indexed, and why."""
        lines = []
        if self.others:
            counts = Counter(base for _, base in self.others).most_common()
            named = [f"{printable(base, 60)} ({count:,})" for base, count in counts]
            lines.append(f"models of other bases, not indexed: {len(self.others):,}, of {some_of(named, 8)}")
        if self.unnamed:
            lines.append(f"models that name no base, not indexed: {len(self.unnamed):,} ({some_of(self.unnamed, 3)})")
        if self.by_shapes:
            shown = some_of(self.by_shapes, 3)
            lines.append(f"models whose base is told by their shapes alone: {len(self.by_shapes):,} ({shown})")
        return lines

    def places(self, base: str) -> dict[str, ModelRef]:
        """Where the models of a base lie, by their names."""
        return {placed.known.model: tree.reference(placed) for tree, placed in self.of[base]}


def places_in_trees(folder: AtlasFolder, models: Collection[str]) -> dict[str, ModelRef]:
    """Where models lie that were found in trees, by their names; those that are not there any more are left out.

    The trees are listed again. One whose path is not stored, or that cannot be listed now, gives nothing.
    """
    known = KnownTrees(folder)
    wanted = set(models)
    places: Mapping[str, Mapping[str, KnownPlace]] = known.places() if wanted else {}
    references: dict[str, ModelRef] = {}
    for tree in known.trees() if wanted else ():
        of_tree = {place: placed for place, placed in places.get(tree.tree, {}).items() if placed.model in wanted}
        if tree.address is None or not of_tree:
            continue
        try:
            files = file_system(tree.address)
            listing = list_tree(files)
        except AtlasError:
            continue
        here = Tree(tree, files, listing)
        for model in listing.models:
            placed = of_tree.get(here.place_of(model))
            if placed is not None and placed.fingerprint == model.fingerprint:
                references.setdefault(placed.model, here.reference(PlacedModel(model, placed, None)))
    return references


def _ancestor(folder: AtlasFolder, facts: BaseFacts, bases: Mapping[str, BaseFacts]) -> str | None:
    """Which of ``bases`` a model was made from, by what its card and those of the models before it say."""
    for _ in range(MOST_STEPS):
        own = set(map(str.lower, facts.ids))
        parents = [name for name in stated_bases(facts.row) if name.lower() not in own]
        if len(parents) != 1:  # a base, or a merge
            return None
        (parent,) = parents
        for base, known in bases.items():
            if parent.lower() in map(str.lower, known.ids):
                return base
        try:
            facts = find_base(folder, parent)
        except AtlasError:
            return None
    return None


def list_trees(build: Build, trees: Trees, models: Sequence[tuple[Tree, PlacedModel]]) -> None:
    """Bring the listing of one base up to date with what trees hold."""
    listing, facts = build.listing, build.facts
    is_known = listing.path.exists()
    if not models and not is_known:
        return
    listing.note_base(facts.ids, build.base.licence)
    build.base.note_mirrors(listing)
    try:
        _, gone = trees.update(listing, facts.id, models)
    finally:
        listing.remove_if_empty()
    if gone:
        build.watcher.say(f"{gone} models of {facts.id} have left the trees; the atlas keeps what it has of them")

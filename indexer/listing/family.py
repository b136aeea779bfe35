"""The family of a base as far as a crawl knows it: which model is to be asked for its children next.

A model belongs to it if it names the base or another member as what it was made from (by fine-tuning, merging or
quantising), or if it is a mirror of the base by name. Adapters belong to it too, but are not asked: of 600,000 models
that name a base, 458 name an adapter (July 2025).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from indexer.listing.claims import hub_spelling
from indexer.listing.questions import CrawlProgress, CrawlRequest, Question, Step


class Family:
    """The members that are known, in ``progress.family``, and the order in which they are asked.

    The most downloaded one comes first, wherever it was found, because that one has the most children. The order
    depends on nothing but the members and what is finished, so a resumed crawl goes on with the same questions.
    """

    def __init__(self, request: CrawlRequest, progress: CrawlProgress) -> None:
        self._request = request
        self._progress = progress
        self._depths = {name.lower(): 0 for name in request.ids} | {name.lower(): 1 for name in request.mirrors}
        # Names of the base's own weights.
        self.copies = {hub_spelling(name).lower() for name in request.mirrors}
        self._waiting: list[tuple[int, str]] = []
        self._copies_asked = Counter[str]()
        asked = {Question("children", name).key for name in progress.family} & progress.finished
        self._left = request.max_questions - len(asked)
        # An earlier crawl may name a child before its parent.
        rest = dict(progress.family)
        while placed := [name for name, step in rest.items() if step.of.lower() in self._depths]:
            for name in placed:
                self._place(name, rest.pop(name))

    def add(self, identifier: str, step: Step) -> None:
        """Take a model into account; the first step that leads to it counts."""
        if identifier not in self._progress.family:
            self._progress.family[identifier] = step
            self._place(identifier, step)

    def _place(self, identifier: str, step: Step) -> None:
        name, parent = identifier.lower(), step.of.lower()
        if name in self._depths or parent not in self._depths:
            return
        self._depths[name] = self._depths[parent] + 1
        if step.relation == "quantized" and (not self._depths[parent] or parent in self.copies):
            self.copies.add(name)
        heapq.heappush(self._waiting, (-step.downloads, identifier))

    def questions(self) -> Iterator[Question]:
        """The next questions, one at a time; answers that arrive in between are taken into account.

        Members that a bound leaves out are counted in ``progress.unasked``.
        """
        self._progress.unasked = 0
        while self._waiting:
            _, identifier = heapq.heappop(self._waiting)
            step, name = self._progress.family[identifier], identifier.lower()
            if name not in self.copies and not self._request.descendants:
                continue
            if self._depths[name] >= self._request.max_depth:
                self._progress.unasked += 1
                continue
            question = Question("children", identifier)
            if step.relation == "quantized":
                self._copies_asked[step.of.lower()] += 1
            surplus = self._copies_asked[step.of.lower()] - self._request.max_copies
            if question.key in self._progress.finished:
                continue
            if self._left <= 0 or (step.relation == "quantized" and surplus > 0):
                self._progress.unasked += 1
                continue
            self._left -= 1
            yield question

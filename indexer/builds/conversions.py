"""Finds the sources of the conversions that a build met, once the models that may be their sources have records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from indexer.atlas import AtlasFolder
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, ModelError
from indexer.network.rows import listed_filenames
from indexer.publish.rows import Entry
from indexer.publish.stored_answers import CONVERSIONS, add_answers, read_answers
from indexer.records.conversion import CONVERSION
from indexer.sources.claims import BY_FOLDER
from indexer.sources.registry import ModelRef
from indexer.sources.rows import facts_of
from indexer.untrusted import printable


def find_conversions(
    folder: AtlasFolder,
    base: StoredBase,
    entries: Iterable[Entry],
    places: Mapping[str, ModelRef],
    say: Callable[[str], None],
) -> int:
    """Find and store the source of every conversion that has no answer at its commit; returns the bytes read.

    ``places``: where models lie that the atlas cannot find by their ids.

    The next publish shows the answers. One that cannot be read now is left for the next build.
    """
    entries = list(entries)
    met = [entry for entry in entries if entry.outcome is not None and entry.outcome.reason == CONVERSION]
    if not met:
        return 0
    from indexer.deltas.base import BaseMatrices
    from indexer.deltas.conversions.find import IndexedCandidate, answer_line, find_conversion

    answered = {(line["model"], line["commit"]) for line in read_answers(CONVERSIONS, folder, base.base)[0]}
    models = [
        IndexedCandidate(
            entry.listed.id, entry.commit, entry.listed.relation, entry.record_key, places.get(entry.listed.id)
        )
        for entry in entries
        if entry.record_key is not None
    ]
    bytes_read = asked = known = 0
    for entry in met:
        model, commit = entry.listed.id, entry.commit or ""
        is_out_of_reach = model not in places and entry.listed.claimed_by == BY_FOLDER
        if (model, commit) in answered or is_out_of_reach:
            continue
        row = entry.listed.row
        reference = places.get(model) or ModelRef.of_atlas(model)
        try:
            found = find_conversion(
                folder, base.reference(reference, listed_filenames(row)), BaseMatrices(base.path, resident=False),
                models, claimed=facts_of(row).bases, commit=entry.commit, filenames=listed_filenames(row),
            )  # fmt: skip
        except (ModelError, AtlasError) as problem:
            detail = problem.detail if isinstance(problem, ModelError) else problem.message
            say(f"the source of {printable(model, 100)} was not looked for: {detail}")
            continue
        if found is not None:
            add_answers(folder, CONVERSIONS, base.base, [model], [answer_line(model, commit, found)])
            bytes_read += found.bytes_read
            asked, known = asked + 1, known + (found.source is not None)
    if asked:
        say(f"conversions whose source was looked for: {asked:,}, and found: {known:,}")
    return bytes_read

"""What a row of the Hub's listing is: a model of the base's family, a bad row, or nothing.

For a model without a base_model tag the first piece of evidence that names a base decides, for or against:

1. ``adapter_config.json: base_model_name_or_path``
2. ``config.json: _name_or_path``
3. the Trainer's sentence in the card: "fine-tuned version of [X](…)"
4. the name, which is wrong for about 5 models in 100 and therefore only a reason to look at the weights.

A local folder of the author does not name a base, unless its last part is the base's own name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from indexer.errors import Failed, ModelError
from indexer.hub_ids import is_hub_id
from indexer.names import RELATIONS
from indexer.network.hub import fetch_json
from indexer.network.hub_errors import as_user_error
from indexer.network.rows import filenames_in
from indexer.sources.cards.readme import SENTENCE, sentence_bases, sentence_datasets
from indexer.sources.cards.sentence import lacks_sentence
from indexer.sources.claims import (
    NO,
    NO_PATH,
    UNSURE,
    YES,
    Claim,
    classify_base,
    classify_path,
    hub_spelling,
    is_named_after,
    relation_to,
    stated_bases,
    stated_models,
    untyped_relation,
)
from indexer.sources.questions import (
    WALKED,
    BadRow,
    ClaimedRow,
    CrawlRequest,
    Question,
    RawRow,
    Rejected,
    Step,
    UnlistedMember,
)
from indexer.sources.readmes import readme_of
from indexer.sources.rows import bad_row
from indexer.untrusted import Reader

_LONGEST_NAME = 500


# (file, key, what a claim made there is called)
_NAMED_IN = (
    ("adapter_config.json", "base_model_name_or_path", "adapter_config"),
    ("config.json", "_name_or_path", "config"),
)


class ClaimFilter:
    """Checks the rows of one crawl: a row is a fine-tune of the base, is not, or cannot be used.

    ``known``: what earlier crawls found out about untagged models, and at which commit. ``copies``: other names of the
    base's weights, in lower case; the crawl adds to them. A bad row never raises: it becomes a BadRow with a reason.
    """

    def __init__(
        self,
        request: CrawlRequest,
        known: Mapping[str, tuple[str, Claim | None]],
        copies: Collection[str] = (),
    ) -> None:
        self.request = request
        self._copies = copies
        self._known = known
        self.ids = {name.lower() for name in request.ids}
        self._candidates = 0
        self.is_cut = False  # whether untagged models were left out by a bound

    def __call__(self, question: Question, row: Any) -> ClaimedRow | BadRow | Rejected | UnlistedMember | None:
        """What a row is that answers ``question``; None for one that makes no claim.

        Raises AtlasError if the files of an untagged model are needed and the Hub cannot be asked at all.
        """
        if bad := bad_row(row, is_hub_id):
            return bad
        identifier = str(row.get("id", row.get("modelId")))
        if identifier.lower() in self.ids:
            return None
        row = {**row, "id": identifier}
        stated, asked = stated_bases(row), hub_spelling(question.asked).lower()
        if question.kind == "names" and not stated_models(row):
            return self._untagged(row)
        if not isinstance(row.get("tags"), list) and not stated.keys() & {*self.ids, asked}:
            return BadRow.of(row, "the row has no tags, so nothing says that it comes from this base")
        direct = relation_to(row, self.request.ids, self.request.relations)
        if direct:
            return ClaimedRow(row, Claim(direct, "tag", self.request.base))
        if question.kind != "children":
            relation = relation_to(row, self.request.ids, RELATIONS)
            return _unlisted_member(row, relation, self.request.base)
        relation = relation_to(row, (question.asked,), RELATIONS)
        parent = hub_spelling(question.asked)
        if relation not in self.request.relations:
            return _unlisted_member(row, relation, parent)
        claimed_by = f"alias:{parent}" if parent.lower() in self._copies else "tag"
        return ClaimedRow(row, Claim(relation, claimed_by, parent))

    def _untagged(self, row: RawRow) -> ClaimedRow | BadRow | Rejected | None:
        identifier, commit = str(row["id"]), str(row.get("sha") or "")
        known = self._known.get(identifier)
        if known is not None and commit and known[0] == commit:
            claim, why = known[1], "it was examined before"
        else:
            if self._candidates >= self.request.max_candidates:
                self.is_cut = True
                return None
            self._candidates += 1
            try:
                claim, why, readme = _find_claim(row, self.request.ids)
            except Failed as error:
                if error.reason in ("network", "rate_limited"):
                    raise as_user_error(error, f"the files of {identifier}") from error
                why = f"its files could not be read to find its base: {error.detail}"
                return BadRow.of({"id": identifier}, why)
            if readme is not None and lacks_sentence(row):
                row = {**row, SENTENCE: list(sentence_datasets(readme))}  # it is not fetched again
        if claim is None:
            return Rejected(identifier, commit, why)
        return ClaimedRow(row, claim) if claim.relation in self.request.relations else None


def _unlisted_member(row: RawRow, relation: str | None, parent: str) -> UnlistedMember | None:
    """A model that is not listed, if it may have children that are.

    GGUF files are made to be run, not trained; most quantised copies are nothing else.
    """
    if relation not in WALKED or row.get("private") is True:  # nothing is kept of a private model but its own row
        return None
    tags = row.get("tags")
    is_gguf = row.get("library_name") == "gguf" or (isinstance(tags, list) and "gguf" in tags)
    if relation == "quantized" and is_gguf:
        return None
    downloads = Reader().count(row.get("downloads"), "downloads") or 0
    return UnlistedMember(str(row["id"]), Step(parent, relation, downloads))


def _find_claim(row: Mapping[str, Any], ids: Collection[str]) -> tuple[Claim | None, str, str | None]:
    """Whether the model of ``row`` comes from the base that ``ids`` name, the canonical id first.

    Returns its claim, None for a model of another base; the evidence in words; and its README if that was read. Reads
    up to three small files. Raises Failed if one of them cannot be read now, but may be readable later.
    """
    identifier, revision = str(row["id"]), str(row.get("sha") or "main")
    base, names, relation = next(iter(ids)), filenames_in(row), untyped_relation(row)
    is_unclear = lacks_path = False
    readme: str | None = None
    for filename, key, claimed_by in _NAMED_IN:
        if names and filename not in names:
            continue
        try:
            config = fetch_json(identifier, filename, revision)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason not in ("not_found", "malformed_row", "refused"):
                raise
            config = None
        path = config.get(key) if isinstance(config, dict) else None
        lacks_path = lacks_path or (isinstance(config, dict) and key == "_name_or_path" and key not in config)
        is_text = isinstance(path, str) and len(path) <= _LONGEST_NAME
        verdict = classify_path(path if is_text else None, identifier, ids)
        if verdict == YES:
            found = "adapter" if claimed_by == "adapter_config" else relation
            return Claim(found, claimed_by, base), f"{filename} names it", readme
        if verdict == NO:
            return None, f"{filename} names another model", readme
        is_unclear = is_unclear or verdict == UNSURE
    if not names or "README.md" in names:
        readme = readme_of(identifier, revision)
        # A folder on the author's machine says nothing, unless it has the base's name.
        verdicts = (classify_base(name, identifier, ids) for name in sentence_bases(readme))
        verdict = next((one for one in verdicts if one in (YES, NO)), None)
        if verdict == YES:
            return Claim(relation, "card", base), "its card names it", readme
        if verdict == NO:
            return None, "its card names another base", readme
    if is_unclear:
        return None, "its configuration names something else, or a folder", readme
    if is_named_after(identifier, ids):
        return Claim(relation, "name", base), "its name", readme
    return None, NO_PATH if lacks_path else "nothing names the base", readme

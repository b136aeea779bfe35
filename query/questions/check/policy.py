"""A policy says which models may be used. It is a TOML file with lists; anything that it does not mention is allowed.

bases = ["roberta-base"]
licences = ["apache-2.0", "mit", "cc-by-*"]
authors = ["acme", "google"]
kinds = ["finetune", "adapter"]
not_contradicted = ["base", "licence"]   # by default every claim
known = ["base"]                         # claims that must not be "cannot be told"
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from indexer.errors import AtlasError
from indexer.regular_files import read_regular
from query.contract.results import Doc
from query.questions.check.claims import CLAIMS, CONTRADICTED, UNKNOWN, Claim, kind_of

if TYPE_CHECKING:
    from query.models.reader import AtlasReader
    from query.questions.check.subject import Subject

_LONGEST = 1 << 20
_KINDS = (
    "finetune", "adapter", "merge", "quantized", "copy", "unrelated", "fact edited", "abliterated", "pruned",
    "noise added", "embedding rows reset", "embedding rows added", "layers moved", "rearranged", "untrained", "broken",
)  # fmt: skip

ALLOWED, REFUSED = "allowed", "not allowed"


@dataclass(frozen=True)
class Policy:
    """The rules of a policy. An empty list allows everything; patterns of licences and authors have ``*``.

    ``not_contradicted``: claims that must not be contradicted; ``known``: claims that must be told.
    """

    bases: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    not_contradicted: tuple[str, ...] = CLAIMS
    known: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Policy:
        """Read a TOML file. Raises AtlasError that describes the mistake in it."""
        try:
            text = read_regular(file, most=_LONGEST, through_links=True).decode()
            values = tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise AtlasError(
                f"The policy {file} cannot be read: {error}.", "It is a TOML file; see docs/guide/check.md."
            ) from error
        names = [column.name for column in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise AtlasError(f"The policy {file} has an unknown key {unknown[0]!r}.", f"Keys: {', '.join(names)}.")
        for name, value in values.items():
            if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
                raise AtlasError(f"{name} in the policy {file} is not a list of texts.", f'Example: {name} = ["…"]')
            choices = {"kinds": _KINDS, "not_contradicted": CLAIMS, "known": CLAIMS}.get(name)
            if choices and (unknown_items := [item for item in value if item not in choices]):
                raise AtlasError(
                    f"{name} in the policy {file} has {unknown_items[0]!r}.", f"Choices: {', '.join(choices)}."
                )
        return cls(**{name: tuple(value) for name, value in values.items()})


@dataclass(frozen=True)
class Rule:
    """One rule of a policy, and whether the model keeps it."""

    rule: Annotated[str, Doc("Key of the policy, and its claim.")]
    value: Annotated[str | None, Doc("The value for this model; empty if it cannot be told.")]
    verdict: Annotated[str, Doc("allowed, not allowed, or cannot be told.")]


def rules_of(atlas: AtlasReader, subject: Subject, claims: Sequence[Claim], policy: Policy) -> tuple[Rule, ...]:
    """Every rule of the policy that says something about this model."""
    rules = []
    by_name = {claim.claim: claim for claim in claims}
    if policy.bases:
        allowed = {canonical for name in policy.bases for canonical in (name.lower(), _canonical(atlas, name))}
        base = by_name["base"]
        if subject.weights.is_unrelated:
            rules.append(Rule("bases", base.measured, REFUSED))
        else:
            verdict = ALLOWED if subject.base.lower() in allowed else REFUSED
            rules.append(Rule("bases", subject.base, verdict if base.measured or verdict == REFUSED else UNKNOWN))
    if policy.licences:
        names = [stated.name.lower() for stated in subject.own.licences]
        is_allowed = bool(names) and all(_matches(name, policy.licences) for name in names)
        value = ", ".join(stated.name for stated in subject.own.licences) or None
        rules.append(Rule("licences", value, _verdict(bool(names), is_allowed)))
    if policy.authors:
        rules.append(
            Rule("authors", subject.card.author, _verdict(True, _matches(subject.card.author.lower(), policy.authors)))
        )
    if policy.kinds:
        kind = kind_of(subject)
        rules.append(Rule("kinds", kind or None, _verdict(bool(kind), kind in policy.kinds)))
    for name in policy.not_contradicted:
        if by_name[name].verdict == CONTRADICTED:
            rules.append(Rule(f"not_contradicted: {name}", by_name[name].measured, REFUSED))
    for name in policy.known:
        verdict = by_name[name].verdict
        rules.append(Rule(f"known: {name}", by_name[name].measured, UNKNOWN if verdict == UNKNOWN else ALLOWED))
    return tuple(rules)


def _verdict(is_known: bool, is_allowed: bool) -> str:
    return UNKNOWN if not is_known else ALLOWED if is_allowed else REFUSED


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)


def _canonical(atlas: AtlasReader, name: str) -> str:
    with suppress(AtlasError):
        return atlas.base_named(name).lower()
    return name.lower()

"""Whether a model is what its card says: each claim against the weights, and a policy for CI."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.messages import say
from indexer.console.option import Option
from query.contract.columns import BaseId, ModelId, Notes
from query.contract.options import Base, Model
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Doc, If, Result
from query.questions.check.claims import AGREES, CONTRADICTED, Claim, claims_of
from query.questions.check.policy import ALLOWED, REFUSED, Policy, Rule, rules_of
from query.questions.check.subject import read_subject
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

# The exit status if nothing is wrong, but a rule of the policy cannot be decided.
_UNKNOWN_STATUS = 2


@dataclass(frozen=True, repr=False, eq=False)
class Check(Result):
    """The claims of one model against its weights."""

    ROWS = "claims"
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("probability", "evidence")

    model: ModelId
    base: BaseId
    claims: Annotated[tuple[Claim, ...], Doc("Each claim, with the measurement from weights and files.")]
    rules: Annotated[tuple[Rule, ...], Doc("The rules of the policy, if one was given."), If()] = ()
    notes: Notes = ()

    @property
    def contradicted(self) -> tuple[str, ...]:
        """The claims that weights or files contradict."""
        return tuple(claim.claim for claim in self.claims if claim.verdict == CONTRADICTED)

    @property
    def is_allowed(
        self,
    ) -> Annotated[bool | None, Doc("Whether the policy allows the model; empty if that cannot be told.")]:
        """Without a policy: whether no claim is contradicted."""
        if self.contradicted and not self.rules:
            return False
        verdicts = {rule.verdict for rule in self.rules}
        return False if REFUSED in verdicts else None if verdicts - {ALLOWED} else True

    @property
    def headline(self) -> str:
        """How many claims agree, and which are contradicted."""
        counts = Counter(claim.verdict for claim in self.claims)
        clause = f"; contradicted: {', '.join(self.contradicted)}" if self.contradicted else "; none is contradicted"
        return f"{self.model}: {counted(counts[AGREES], 'claim')} of {len(self.claims)} agree with its weights{clause}."


def _command(
    call: Invocation,
    *,
    policy: Annotated[
        str | None, Option("A policy: allowed bases, licences, authors and kinds (TOML).", metavar="FILE")
    ] = None,
    **options: Any,
) -> None:
    """The exit status is 1 if a claim is contradicted or the policy refuses the model, 2 if it cannot be told."""
    rules = None if policy is None else Policy.read(Path(policy))
    with call.opened() as atlas:
        answer = atlas.check(**options, policy=rules)
        call.show(answer)
    for rule in answer.rules:
        if rule.verdict != ALLOWED:
            say(f"{rule.rule}: {rule.value or 'nothing'} is {rule.verdict}" if rule.verdict == REFUSED else
                f"{rule.rule}: it cannot be told")  # fmt: skip
    if answer.is_allowed is not True:
        call.fail(1 if answer.is_allowed is False else _UNKNOWN_STATUS)


@question(
    example="check textattack/roberta-base-MNLI --policy policy.toml",
    agents=Tool(
        "Compare what a model's card claims with its weights: base, parent, data set, licence and more.",
        ("model", "base"),
    ),
    command=_command,
)
def check(atlas: AtlasReader, model: Model, base: Base = None, *, policy: Policy | None = None) -> Check:
    """Compare each claim of ``model``'s card with its weights and files.

    Base, parent, relation, data set, licence, quantisation, size and library: each agrees, is contradicted, or cannot
    be told, with the evidence. A policy says which bases, licences, authors and kinds are allowed: docs/guide/check.md.

    Raises:
        AtlasError: the model is unknown or cannot be read, or the policy has a mistake.
    """
    subject = read_subject(atlas, model, base)
    claims = claims_of(atlas, subject)
    rules = () if policy is None else rules_of(atlas, subject, claims, policy)
    return Check(subject.model, subject.base, claims, rules, subject.notes)

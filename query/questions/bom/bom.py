"""The bill of materials of a model: its chain of models by their weights, licences, data sets and checksums."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.advice import for_command_line
from indexer.console.messages import say
from indexer.console.option import Option
from indexer.console.output import emit
from indexer.errors import AtlasError, BadArgument, require
from query.contract.figures import write_output
from query.contract.options import Base, Model
from query.contract.registry import Invocation, Tool, question
from query.questions.bom.materials import BillOfMaterials, bill_of
from query.questions.lineage.lineage import lineage

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

# The formats of documents: the module of this folder that writes each, and the package that it needs.
DOCUMENTS = {
    "cyclonedx": ("cyclonedx_document", "cyclonedx"),
    "spdx": ("spdx_document", "spdx_python_model"),
    "intoto": ("intoto_statement", "in_toto_attestation"),
}


def document(bill: BillOfMaterials, format: str = "cyclonedx") -> dict[str, Any]:
    """A bill as a document of another standard, checked with the schema of that standard.

    Args:
        bill: an answer of ``bom``.
        format: cyclonedx (1.6, JSON), spdx (3.0.1, AI profile, JSON-LD), or intoto (an in-toto statement, version 1).

    Raises:
        AtlasError: the library of the format is not installed, or the bill lacks what the format demands.
    """
    if format not in DOCUMENTS:
        raise BadArgument(f"`format` {format!r} is not one of {', '.join(DOCUMENTS)}.", "")
    module, library = DOCUMENTS[format]
    require(f"A document in the format {format}", library)
    written: dict[str, Any] = import_module(f"query.questions.bom.{module}").document(bill)
    return written


def _command(
    call: Invocation,
    out: Annotated[str | None, Option("Write the document to this file.", metavar="FILE")] = None,
    **options: Any,
) -> None:
    """The document is on stdout, checked with the schema of its format: CycloneDX 1.6, SPDX 3.0 or in-toto."""
    is_document = call.output in DOCUMENTS
    if out is not None and not is_document:
        call.refuse(f"--out writes a document: --format {', '.join(DOCUMENTS)}.")
    if is_document:
        require(f"A document in the format {call.output}", DOCUMENTS[call.output][1])
    with call.opened() as atlas:
        bill = atlas.bom(**options)
        if not is_document:
            call.show(bill)
            return
    written = document(bill, call.output)
    if out is None:
        emit(written, "json")
    else:
        write_output(Path(out), (json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode())
        say(f"the document is in {out}")
    for note in bill.notes:
        say(for_command_line(note))


@question(
    example="bom textattack/roberta-base-MNLI --out bom.json",
    agents=Tool("List what a model was made from: models by its weights, licences, data sets, checksums of files."),
    command=_command,
    documents=tuple(DOCUMENTS),
)
def bom(
    atlas: AtlasReader,
    model: Model,
    base: Base = None,
    *,
    name: Annotated[
        str | None, Option("What to call a model that is not public; its own name is left out.", metavar="NAME")
    ] = None,
) -> BillOfMaterials:
    """List what ``model`` was made from: a bill of materials, for a security or licence review.

    The model, the models and the base that its weights lead to, each with licence, version, data sets and SHA-256 of
    its weight files, and the measured evidence of each step. Nothing private is in it: a model that is not public, and
    its files, have neutral names. Files on this machine are hashed, which reads them once.

    Raises:
        AtlasError: the model is unknown or cannot be read.
    """
    answer = lineage(atlas, model, base)
    if name is not None and (not name.strip() or len(name) > 200 or not name.isprintable()):
        raise AtlasError("`name` must be a line of at most 200 characters.", "")
    return bill_of(atlas, answer, str(model), name)

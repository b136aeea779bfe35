"""A bill of materials as an in-toto statement (version 1): weight files are its subject, lineage is its predicate."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

from indexer.errors import AtlasError
from indexer.version import __version__
from query.questions.bom.materials import MODEL, BillOfMaterials, Material

PREDICATE_TYPE = (
    "https://github.com/vectors-in-the-wild/vectors-in-the-wild/blob/main/docs/guide/bom.md#model-lineage-v1"
)


def document(bill: BillOfMaterials) -> dict[str, Any]:
    """The statement, checked by the library of in-toto. Raises AtlasError if no checksum of the model is known."""
    (model,) = [material for material in bill.materials if material.role == MODEL]
    hashed_files = [file for file in model.files if file.sha256]
    if not model.files or len(hashed_files) < len(model.files):
        raise AtlasError(
            f"An in-toto statement is about files with checksums, and {len(model.files) - len(hashed_files)} of the "
            f"{len(model.files)} weight files of {bill.model} have none.",
            "Name the folder that holds the model: its files are hashed.",
        )
    subjects = [ResourceDescriptor(name=file.name, digest={"sha256": file.sha256}).pb for file in hashed_files]
    predicate = {
        "model": _descriptor(model),
        "materials": [_descriptor(material) for material in bill.materials if material.role != MODEL],
        "steps": [
            {
                "child": step.child,
                "parent": step.parent,
                "kind": step.kind,
                "evidence": step.evidence,
                "card": step.card,
                **({} if step.probability is None else {"probability": round(step.probability, 4)}),
                **({} if step.residual is None else {"residual": round(step.residual, 6)}),
            }
            for step in bill.derivations
        ],
        "measuredDatasets": [
            {"name": measured.dataset, "probability": round(measured.probability, 4)}
            for measured in bill.measured_datasets
        ],
        "tool": {"name": "vectors-in-the-wild", "version": __version__, "generation": bill.generation},
    }
    statement = Statement(subjects, PREDICATE_TYPE, predicate)
    try:
        statement.validate()
    except ValueError as error:
        raise AtlasError(f"The statement does not fit in-toto: {error}.", "") from error
    written: dict[str, Any] = MessageToDict(statement.pb)
    return written


def _descriptor(material: Material) -> dict[str, Any]:
    """A resource descriptor, with facts from the card as annotations."""
    files = {file.name: file.sha256 for file in material.files if file.sha256}
    annotations = {
        "role": material.role,
        "version": material.version,
        "licence": material.licence_name or material.licence,
        "datasets": list(material.datasets),
        "change": material.change,
    }
    return {
        "name": material.model,
        **({"uri": material.purl} if material.purl else {}),
        **({"digest": {"sha256": next(iter(files.values()))}} if len(material.files) == 1 and files else {}),
        "annotations": {name: value for name, value in annotations.items() if value},
    }

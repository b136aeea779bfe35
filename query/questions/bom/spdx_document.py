"""A bill of materials as SPDX 3.0.1 (JSON-LD), with the profiles for AI and data sets, by spdx-python-model.

Models are AI packages, data sets dataset packages. A step is a relationship ``descendantOf`` whose comment has the
measured evidence; SPDX has no field for a confidence.
"""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from cyclonedx.spdx import fixup_id
from spdx_python_model import v3_0_1 as spdx

from indexer.errors import AtlasError
from indexer.version import __version__
from query.questions.bom.materials import MODEL, BillOfMaterials, Material


class _Document:
    """The elements of one document, all with the same creation info."""

    def __init__(self) -> None:
        self._namespace = f"urn:uuid:{uuid.uuid4()}#"
        self.objects = spdx.SHACLObjectSet()
        self._count = 0
        self._creation = spdx.CreationInfo(
            _id="_:creation", specVersion="3.0.1", created=datetime.now(UTC).replace(microsecond=0)
        )
        tool = self.element(spdx.Tool, name=f"vectors-in-the-wild {__version__}")
        agent = self.element(spdx.SoftwareAgent, name="vectors-in-the-wild")
        self._creation.createdBy.append(agent)
        self._creation.createdUsing.append(tool)
        self.elements: list[Any] = [tool, agent]

    def element(self, kind: Any, **values: Any) -> Any:
        """A new element of a class of the library."""
        self._count += 1
        new_element = kind(_id=f"{self._namespace}{self._count}", creationInfo=self._creation)
        for name, value in values.items():
            if value is not None:
                setattr(new_element, name, value)
        self.objects.add(new_element)
        if hasattr(self, "elements"):
            self.elements.append(new_element)
        return new_element

    def relate(self, source: Any, kind: str, targets: list[Any], **values: Any) -> None:
        """A relationship from one element to others; nothing where there are none."""
        if targets:
            relation = getattr(spdx.RelationshipType, kind)
            self.element(spdx.Relationship, from_=source, to=targets, relationshipType=relation, **values)


def document(bill: BillOfMaterials) -> dict[str, Any]:
    """The document, checked against the constraints of SPDX's model. Raises AtlasError if it does not fit them."""
    try:
        return _document(bill)
    except (ValueError, TypeError) as error:
        raise AtlasError(f"The document does not fit SPDX 3.0.1: {str(error)[:300]}.", "") from error


def _document(bill: BillOfMaterials) -> dict[str, Any]:
    graph = _Document()
    packages = {material.model: _package(graph, material) for material in bill.materials}
    stated = {name for material in bill.materials for name in material.datasets}
    measured = {answer.dataset: answer.probability for answer in bill.measured_datasets}
    datasets = {
        name: graph.element(
            spdx.dataset_DatasetPackage,
            name=name,
            dataset_datasetType=[spdx.dataset_DatasetType.noAssertion],
            software_primaryPurpose=spdx.software_SoftwarePurpose.data,
        )
        for name in sorted(stated | measured.keys())
    }
    for material in bill.materials:
        package = packages[material.model]
        graph.relate(
            package, "trainedOn", [datasets[name] for name in material.datasets], comment="Stated by its card."
        )
        _relate_files(graph, package, material)
        _relate_licence(graph, package, material)
    for name, probability in measured.items():
        comment = f"Measured from the weights: probability {probability:.4f}."
        graph.relate(packages[bill.model], "trainedOn", [datasets[name]], comment=comment)
    for step in bill.derivations:
        words = [step.kind, step.evidence, f"card: {step.card}"]
        words += [] if step.probability is None else [f"probability {step.probability:.4f}"]
        comment = "; ".join(filter(None, words))
        graph.relate(packages[step.child], "descendantOf", [packages[step.parent]], comment=comment)
    model_package = packages[bill.model]
    sbom = graph.element(
        spdx.software_Sbom, rootElement=[model_package], software_sbomType=[spdx.software_SbomType.analyzed],
        element=list(graph.elements),
    )  # fmt: skip
    kinds = spdx.ProfileIdentifierType
    graph.element(
        spdx.SpdxDocument, name=f"Bill of materials of {bill.model}", rootElement=[sbom], element=list(graph.elements),
        profileConformance=[kinds.core, kinds.software, kinds.simpleLicensing],
    )  # fmt: skip
    stream = io.BytesIO()
    spdx.JSONLDSerializer().write(graph.objects, stream)
    written: dict[str, Any] = json.loads(stream.getvalue())
    return written


def _package(graph: _Document, material: Material) -> Any:
    return graph.element(
        spdx.ai_AIPackage,
        name=material.model,
        software_packageVersion=material.version,
        software_packageUrl=material.purl,
        software_downloadLocation=material.page,
        software_primaryPurpose=spdx.software_SoftwarePurpose.model,
        ai_typeOfModel=[material.architecture] if material.architecture else None,
        releaseTime=None if material.created is None else material.created.replace(tzinfo=UTC),
        comment=_comment(material),
    )


def _comment(material: Material) -> str:
    role = "The model that the document is about." if material.role == MODEL else f"Role: {material.role}."
    return role if material.change is None else f"{role} Change of its weights: {material.change}."


def _relate_files(graph: _Document, package: Any, material: Material) -> None:
    files = [
        graph.element(
            spdx.software_File,
            name=file.name,
            verifiedUsing=[spdx.Hash(algorithm=spdx.HashAlgorithm.sha256, hashValue=file.sha256)]
            if file.sha256
            else None,
        )
        for file in material.files
    ]
    graph.relate(package, "contains", files)


def _relate_licence(graph: _Document, package: Any, material: Material) -> None:
    """The declared licences: by their SPDX id where there is one, else by name."""
    licences = []
    for stated in material.licences:
        if not stated.is_own_name and (expression := fixup_id(stated.name)):
            licences.append(
                graph.element(spdx.simplelicensing_LicenseExpression, simplelicensing_licenseExpression=expression)
            )
            continue
        licences.append(
            graph.element(
                spdx.simplelicensing_SimpleLicensingText,
                name=stated.name,
                simplelicensing_licenseText=stated.name,
                comment=f"Link on the card: {material.licence_link}" if material.licence_link else None,
            )
        )
    graph.relate(package, "hasDeclaredLicense", licences)

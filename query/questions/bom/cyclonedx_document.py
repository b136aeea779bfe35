"""A bill of materials as CycloneDX 1.6, JSON, by cyclonedx-python-lib.

Models are components of the type machine-learning-model. What a model was made from is in its pedigree, each ancestor
with the measured evidence as methods of an identity; data sets are components of the type data, to which the model card
refers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.component_evidence import (
    AnalysisTechnique,
    ComponentEvidence,
    Identity,
    IdentityField,
    Method,
)
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.spdx import fixup_id
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from indexer.errors import AtlasError
from indexer.version import __version__
from query.questions.bom.materials import MODEL, BillOfMaterials, Derivation, Material

_VERSION = SchemaVersion.V1_6
_NAMESPACE = "vectors-in-the-wild"


def document(bill: BillOfMaterials) -> dict[str, Any]:
    """The document, checked with the schema of CycloneDX 1.6. Raises AtlasError if it does not fit that."""
    materials = {material.model: material for material in bill.materials}
    bom = Bom(properties=_properties({"atlas-generation": str(bill.generation)}))
    bom.metadata.tools.components.add(
        Component(name="vectors-in-the-wild", version=__version__, type=ComponentType.APPLICATION)
    )
    components = {name: _component(material, BomRef(_ref(material))) for name, material in materials.items()}
    subject = components[bill.model]
    subject.pedigree = _pedigree(bill.model, bill.derivations, materials, set())
    bom.metadata.component = subject
    bom.components.update(component for name, component in components.items() if name != bill.model)
    datasets = {name: _dataset(name, bill) for name in _datasets(bill)}
    bom.components.update(datasets.values())
    for name, component in components.items():
        parents = {step.parent for step in bill.derivations if step.child == name}
        data = [datasets[dataset] for dataset in materials[name].datasets]
        if name == bill.model:
            data += [datasets[measured.dataset] for measured in bill.measured_datasets]
        bom.register_dependency(component, [*(components[parent] for parent in sorted(parents)), *data])
    written: dict[str, Any] = json.loads(make_outputter(bom, OutputFormat.JSON, _VERSION).output_as_string())
    # The library has no class for a model card.
    for component in (written["metadata"]["component"], *written.get("components", ())):
        names = [name for name in materials if component["bom-ref"] == _ref(materials[name])]
        if names and (card := _model_card(names[0], bill, materials)):
            component["modelCard"] = card
    if error := JsonStrictValidator(_VERSION).validate_str(json.dumps(written)):
        raise AtlasError(f"The document does not fit CycloneDX 1.6: {str(error)[:300]}.", "")
    return written


def _ref(material: Material) -> str:
    return material.purl or f"model:{material.model}"


def _component(material: Material, ref: BomRef | None = None, evidence: ComponentEvidence | None = None) -> Component:
    group, _, name = material.model.rpartition("/")
    hashes = [_hash(material.files[0].sha256)] if len(material.files) == 1 and material.files[0].sha256 else []
    return Component(
        name=name,
        group=group or None,
        version=material.version,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=ref,
        purl=None if material.purl is None else PackageURL.from_string(material.purl),
        licenses=_licences(material),
        hashes=hashes,
        components=[
            Component(
                name=file.name,
                type=ComponentType.FILE,
                bom_ref=f"{ref.value}#{file.name}",
                hashes=[_hash(file.sha256)] if file.sha256 else [],
                properties=_properties({"bytes": None if file.size is None else str(file.size)}),
            )
            for file in material.files
        ]
        if ref is not None
        else [],
        external_references=[ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(material.page))]
        if material.page
        else [],
        evidence=evidence,
        properties=_properties(
            {"role": material.role, "architecture": material.architecture, "change": material.change}
        ),
    )


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)


def _licences(material: Material) -> list[DisjunctiveLicense]:
    """The licences on the card: by their SPDX id where there is one, else by name."""
    factory, declared = LicenseFactory(), LicenseAcknowledgement.DECLARED
    licences = []
    for stated in material.licences:
        if not stated.is_own_name and (spdx := fixup_id(stated.name)):
            licences.append(factory.make_with_id(spdx, acknowledgement=declared))
            continue
        link = material.licence_link or ""
        url = XsUri(link) if link.startswith(("https://", "http://")) else None
        licences.append(factory.make_with_name(stated.name, url=url, acknowledgement=declared))
    return licences


def _pedigree(
    model: str, steps: Iterable[Derivation], materials: Mapping[str, Material], seen_models: set[str]
) -> Pedigree | None:
    """The ancestors of a model, each with its own ancestors; a model occurs only once."""
    own_steps = [step for step in steps if step.child == model and step.parent in materials]
    if not own_steps:
        return None
    ancestors = []
    for step in own_steps:
        is_new = step.parent not in seen_models | {model}
        seen_models |= {model, step.parent}
        ancestor = _component(materials[step.parent], evidence=_evidence(step, materials[step.parent]))
        ancestor.properties.update(
            _properties(
                {
                    "step": step.kind,
                    "residual": None if step.residual is None else f"{step.residual:.4f}",
                    "model-card": step.card,
                }
            )
        )
        if is_new:
            ancestor.pedigree = _pedigree(step.parent, steps, materials, seen_models)
        ancestors.append(ancestor)
    notes = "; ".join(f"{step.kind} ({step.parent}): {step.evidence or 'by its weights'}" for step in own_steps)
    return Pedigree(ancestors=ancestors, notes=notes)


def _evidence(step: Derivation, parent: Material) -> ComponentEvidence:
    confidence = None if step.probability is None else Decimal(f"{step.probability:.4f}")
    technique = AnalysisTechnique.HASH_COMPARISON if step.is_proven else AnalysisTechnique.BINARY_ANALYSIS
    method = Method(technique=technique, confidence=confidence or Decimal(0), value=step.evidence or step.kind)
    identity = Identity(
        field=IdentityField.PURL if parent.purl else IdentityField.NAME,
        confidence=confidence,
        concluded_value=parent.purl or parent.model,
        methods=[method] if confidence is not None else [],
    )
    return ComponentEvidence(identity=[identity])


def _datasets(bill: BillOfMaterials) -> list[str]:
    stated = {name for material in bill.materials for name in material.datasets}
    return sorted(stated | {measured.dataset for measured in bill.measured_datasets})


def _dataset(name: str, bill: BillOfMaterials) -> Component:
    measured = {answer.dataset: answer.probability for answer in bill.measured_datasets}.get(name)
    stated = sorted(material.model for material in bill.materials if name in material.datasets)
    group, _, short_name = name.rpartition("/")
    return Component(
        name=short_name,
        group=group or None,
        type=ComponentType.DATA,
        bom_ref=f"dataset:{name}",
        properties=_properties(
            {
                "stated-by": ", ".join(stated),
                "measured-probability": None if measured is None else f"{measured:.4f}",
            }
        ),
    )


def _model_card(name: str, bill: BillOfMaterials, materials: Mapping[str, Material]) -> dict[str, Any]:
    datasets = dict.fromkeys(materials[name].datasets)
    if materials[name].role == MODEL:
        datasets |= dict.fromkeys(measured.dataset for measured in bill.measured_datasets)
    parameters: dict[str, Any] = {}
    if materials[name].architecture:
        parameters["modelArchitecture"] = materials[name].architecture
    if datasets:
        parameters["datasets"] = [{"ref": f"dataset:{dataset}"} for dataset in datasets]
    return {"modelParameters": parameters} if parameters else {}


def _properties(values: Mapping[str, str | None]) -> list[Property]:
    return [Property(name=f"{_NAMESPACE}:{name}", value=value) for name, value in values.items() if value]

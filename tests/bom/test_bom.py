"""Bills of materials: the chain, what is private, and documents that the libraries of each standard accept."""

from __future__ import annotations

import hashlib
import json

import duckdb
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from in_toto_attestation.v1.statement import Statement
from spdx_python_model import v3_0_1 as spdx

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.sources.registry import ModelRef
from query import Atlas
from query.questions.bom import materials
from query.questions.bom.bom import document
from tests.bom.conftest import BASE, FIRST, MERGED, PRIVATE, SECOND, SHA


@pytest.fixture
def bill_of(chain):
    with Atlas(chain) as atlas:
        yield atlas.bom


def test_the_chain_ends_at_the_base(bill_of):
    bill = bill_of(MERGED)
    assert [(row.model, row.role) for row in bill.materials] == [
        (MERGED, "model"), (FIRST, "ancestor"), (SECOND, "ancestor"), (BASE, "base")
    ]  # fmt: skip
    assert {(step.child, step.parent, step.kind) for step in bill.derivations} == {
        (MERGED, FIRST, "merge"), (MERGED, SECOND, "merge"), (FIRST, BASE, "tuned from the base"),
        (SECOND, FIRST, "continued"),
    }  # fmt: skip
    assert {row.model: row.licence for row in bill.materials}[SECOND] == "other"


def test_cyclonedx(bill_of):
    written = document(bill_of(MERGED))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(written)) is None
    own = written["metadata"]["component"]
    assert own["type"] == "machine-learning-model"
    assert own["hashes"] == [{"alg": "SHA-256", "content": SHA[MERGED]}]
    assert [row["license"]["id"] for row in own["licenses"]] == ["Apache-2.0", "MIT"]
    ancestors = {f"{row['group']}/{row['name']}": row for row in own["pedigree"]["ancestors"]}
    assert set(ancestors) == {FIRST, SECOND}
    (identity,) = ancestors[SECOND]["evidence"]["identity"]
    assert (identity["confidence"], identity["methods"][0]["value"]) == (0.99, f"{MERGED} has this evidence")
    # The base is reached through the first of the two; an ancestor has its own pedigree once.
    above = [row["pedigree"]["ancestors"] for row in ancestors.values() if "pedigree" in row]
    assert sorted(row["name"] for rows in above for row in rows) == ["base", "first"]
    components = {row["bom-ref"]: row for row in written["components"]}
    licences = components[f"pkg:huggingface/{SECOND}@{'d' * 40}"]["licenses"]
    assert licences == [{"license": {"acknowledgement": "declared", "name": "Second licence"}}]
    assert components["dataset:imdb"]["properties"][0]["value"] == SECOND
    depends = {row["ref"]: row.get("dependsOn", []) for row in written["dependencies"]}
    assert len(depends[own["bom-ref"]]) == 2


def test_spdx(bill_of):
    written = document(bill_of(MERGED), "spdx")
    objects = spdx.SHACLObjectSet()
    spdx.JSONLDDeserializer().deserialize_data(written, objects)
    packages = {package.name: package for package in objects.foreach_type(spdx.ai_AIPackage)}
    assert set(packages) == {MERGED, FIRST, SECOND, BASE}
    steps = {
        (step.from_.name, target.name)
        for step in objects.foreach_type(spdx.Relationship)
        if step.relationshipType == spdx.RelationshipType.descendantOf
        for target in step.to
    }
    assert steps == {(MERGED, FIRST), (MERGED, SECOND), (FIRST, BASE), (SECOND, FIRST)}
    hashes = {file.verifiedUsing[0].hashValue for file in objects.foreach_type(spdx.software_File)}
    assert hashes == {SHA[name] for name in (MERGED, FIRST, SECOND)}


def test_in_toto(bill_of):
    written = document(bill_of(MERGED), "intoto")
    assert written["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["digest"] for subject in written["subject"]] == [{"sha256": SHA[MERGED]}]
    statement = Statement([], written["predicateType"], written["predicate"])
    with pytest.raises(ValueError, match="subject"):
        statement.validate()  # the library does look
    assert len(written["predicate"]["steps"]) == 4


@pytest.mark.parametrize("kind", ["cyclonedx", "spdx", "intoto"])
def test_nothing_private_is_in_a_document(bill_of, kind):
    text = json.dumps(document(bill_of(PRIVATE, name="Acme 1"), kind))
    assert "Acme 1" in text
    assert "secret" not in text
    assert "local" not in text
    assert SECOND in text  # what it was made from is public


def test_a_private_model_of_the_hub(chain):
    with duckdb.connect(str(AtlasFolder(chain).database)) as connection:
        connection.execute("UPDATE fine_tunes SET private = true WHERE model = ?", [SECOND])
    with Atlas(chain) as atlas:
        text = json.dumps(document(atlas.bom(MERGED)))
    assert SECOND not in text
    assert "bob" not in text
    assert "private-model-2" in text


def test_without_checksums(chain):
    with duckdb.connect(str(AtlasFolder(chain).database)) as connection:
        connection.execute(
            "UPDATE records SET weight_files = [{'name': 'w.bin', 'size': 3, 'sha256': NULL, 'format': 'bin'}]"
        )
    with Atlas(chain) as atlas:
        bill = atlas.bom(MERGED)
        assert any("SHA-256 of 1 of its 1 weight files is not known" in str(note) for note in bill.notes)
        document(bill, "cyclonedx")
        with pytest.raises(AtlasError, match="1 of the 1 weight files"):
            document(bill, "intoto")


def test_a_circle_in_an_atlas_of_a_stranger(chain):
    with duckdb.connect(str(AtlasFolder(chain).database)) as connection:
        connection.execute(
            "INSERT INTO lineage SELECT * REPLACE ((SELECT model_id FROM fine_tunes WHERE model = ?) AS model_id, "
            "(SELECT model_id FROM fine_tunes WHERE model = ?) AS parent_id) FROM lineage LIMIT 1",
            [FIRST, SECOND],
        )
    with Atlas(chain) as atlas:
        for kind in ("cyclonedx", "spdx", "intoto"):
            document(atlas.bom(MERGED), kind)


def test_the_command(chain, run, tmp_path):
    status, output, notes = run("query", "bom", MERGED, "--atlas", chain)
    assert (status, json.loads(output)["specVersion"]) == (0, "1.6")
    assert "its steps were measured on 2026-01-01" in notes
    out = tmp_path / "bom.json"
    assert run("query", "bom", MERGED, "--atlas", chain, "--format", "spdx", "--out", out)[:2] == (0, "")
    assert json.loads(out.read_text())["@context"].endswith("spdx-context.jsonld")
    assert MERGED in run("query", "bom", MERGED, "--atlas", chain, "--format", "table")[1]
    assert json.loads(run("query", "bom", MERGED, "--atlas", chain, "--json")[1])["materials"][0]["model"] == MERGED
    status, _, error = run("query", "bom", MERGED, "--atlas", chain, "--json", "--out", out)
    assert (status, "--out writes a document" in error) == (2, True)


def test_files_of_a_folder_are_hashed_whole(tmp_path, monkeypatch):
    """Also where they are longer than what is read at once."""
    (tmp_path / "config.json").write_text("{}")
    content = bytes(range(256)) * 40
    (tmp_path / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(materials, "_BLOCK", 1000)
    (hashed,) = materials._hashed(
        ModelRef.parse(str(tmp_path)), [materials.MaterialFile("model.safetensors", len(content), None)]
    )
    assert (hashed.size, hashed.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_step_that_no_lineage_keeps_says_what_the_card_says(chain):
    with duckdb.connect(str(AtlasFolder(chain).database)) as connection:
        connection.execute(
            "DELETE FROM lineage WHERE model_id = (SELECT model_id FROM fine_tunes WHERE model = ?)", [FIRST]
        )
        connection.execute("DELETE FROM tags")
    with Atlas(chain) as atlas:
        (step,) = [step for step in atlas.bom(SECOND).derivations if step.child == FIRST]
    assert (step.parent, step.card) == (BASE, "not declared")

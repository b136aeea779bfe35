"""Fields that several answers share, each described once; see ``query.contract.results``.

An answer may describe one anew.
"""

from __future__ import annotations

from typing import Annotated

from query.contract.results import Doc

Notes = Annotated[tuple[str, ...], Doc("Sentences to read with the numbers: reasons to trust them less.")]
BaseId = Annotated[str, Doc("Id of the base model.")]
Vectors = Annotated[str, Doc("Which vectors were compared.")]
ModelId = Annotated[
    str, Doc("Id of the model: owner/name on the Hub, or local:NAME for one that was added from a folder.")
]
ModelNumber = Annotated[int, Doc("Number of the model in this atlas.")]
Author = Annotated[str, Doc("The account on the Hub that the model belongs to.")]
Relation = Annotated[str, Doc("How the model was made from its base: finetune, adapter, merge or quantized.")]
_DATASETS = Doc("Datasets that the card, the tags or the reported results name, each under one spelling.")
Datasets = Annotated[tuple[str, ...], _DATASETS]
DatasetList = Annotated[list[str], _DATASETS]
Dataset = Annotated[str, Doc("Name of a dataset, under one spelling: glue, not nyu-mll/glue.")]
Similarity = Annotated[
    float | None,
    Doc(
        "How alike two weight changes are, from -1 to 1: the mean cosine of the matrices that both models "
        "changed. 1 is the "
        "same direction, 0 nothing in common."
    ),
]
Models = Annotated[int, Doc("Number of models.")]
OF_A_BATCH = {"asked": "The model as it was named on stdin.", "error": "Why there is no answer."}
Authors = Annotated[int, Doc("Number of accounts.")]

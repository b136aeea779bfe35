"""Ask an atlas of fine-tuned models.

>>> from query import Atlas                                    # doctest: +SKIP
>>> with Atlas("atlas") as atlas:                              # doctest: +SKIP
...     atlas.similar("textattack/roberta-base-MNLI", k=5).to_df()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.version import __version__

if TYPE_CHECKING:
    from query.contract.results import Answered, Result
    from query.faces.atlas import Atlas
    from query.faces.export import ModelVectors
    from query.faces.report.report import Report
    from query.questions.ask.result import LikelyModel, LikelyModels, TextsOfModel
    from query.questions.clusters.result import Clusters
    from query.questions.compare import Comparison
    from query.questions.depth.depth import Depth
    from query.questions.depth.study import DepthStudy
    from query.questions.features import FeatureGrid
    from query.questions.inventory import ListedDataset, ListedDatasets, ListedModel, ListedModels
    from query.questions.invert import RecoveredImages, RecoveredWords
    from query.questions.layers import Layers
    from query.questions.lineage.result import Lineage, Lineages
    from query.questions.map.model_map import ModelMap
    from query.questions.predict.result import Evaluation, Prediction
    from query.questions.purity.result import PurityResult
    from query.questions.rank.study import RankStudy
    from query.questions.show import ShownModel
    from query.questions.similar import Neighbour, SimilarModels
    from query.questions.sql import SqlResult

# Where each result is defined: none is loaded before it is asked for, as `query --help` must not wait for numpy.
_MODULES = {
    "Answered": "query.contract.results",
    "Atlas": "query.faces.atlas",
    "Clusters": "query.questions.clusters.result",
    "Comparison": "query.questions.compare",
    "Depth": "query.questions.depth.depth",
    "DepthStudy": "query.questions.depth.study",
    "Evaluation": "query.questions.predict.result",
    "FeatureGrid": "query.questions.features",
    "Layers": "query.questions.layers",
    "LikelyModel": "query.questions.ask.result",
    "LikelyModels": "query.questions.ask.result",
    "Lineage": "query.questions.lineage.result",
    "Lineages": "query.questions.lineage.result",
    "ListedDataset": "query.questions.inventory",
    "ListedDatasets": "query.questions.inventory",
    "ListedModel": "query.questions.inventory",
    "ListedModels": "query.questions.inventory",
    "ModelMap": "query.questions.map.model_map",
    "ModelVectors": "query.faces.export",
    "Neighbour": "query.questions.similar",
    "Prediction": "query.questions.predict.result",
    "PurityResult": "query.questions.purity.result",
    "RankStudy": "query.questions.rank.study",
    "RecoveredImages": "query.questions.invert",
    "RecoveredWords": "query.questions.invert",
    "Report": "query.faces.report.report",
    "Result": "query.contract.results",
    "ShownModel": "query.questions.show",
    "SimilarModels": "query.questions.similar",
    "SqlResult": "query.questions.sql",
    "TextsOfModel": "query.questions.ask.result",
}

__all__ = [
    "Answered", "Atlas", "AtlasError", "Clusters", "Comparison", "Depth", "DepthStudy", "Evaluation", "FeatureGrid",
    "Layers", "LikelyModel", "LikelyModels", "Lineage", "Lineages", "ListedDataset", "ListedDatasets", "ListedModel",
    "ListedModels", "ModelMap", "ModelVectors",
    "Neighbour", "Prediction", "PurityResult", "RankStudy", "RecoveredImages", "RecoveredWords", "Report",
    "Result", "ShownModel", "SimilarModels", "SqlResult", "TextsOfModel", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'query' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

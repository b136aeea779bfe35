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
    from query.ask.result import LikelyModel, LikelyModels, TextsOfModel
    from query.atlas import Atlas
    from query.clusters.result import Clusters
    from query.compare import Comparison
    from query.depth.depth import Depth
    from query.depth.study import DepthStudy
    from query.export import ModelVectors
    from query.features import FeatureGrid
    from query.inventory import ListedDataset, ListedDatasets, ListedModel, ListedModels
    from query.invert import RecoveredImages, RecoveredWords
    from query.layers import Layers
    from query.lineage.result import Lineage, Lineages
    from query.map.model_map import ModelMap
    from query.predict.result import Evaluation, Prediction
    from query.purity.result import PurityResult
    from query.rank.study import RankStudy
    from query.report.report import Report
    from query.results import Answered, Result
    from query.show import ShownModel
    from query.similar import Neighbour, SimilarModels
    from query.sql import SqlResult

# Where each result is defined: none is loaded before it is asked for, as `query --help` must not wait for numpy.
_MODULES = {
    "Answered": "query.results",
    "Atlas": "query.atlas",
    "Clusters": "query.clusters.result",
    "Comparison": "query.compare",
    "Depth": "query.depth.depth",
    "DepthStudy": "query.depth.study",
    "Evaluation": "query.predict.result",
    "FeatureGrid": "query.features",
    "Layers": "query.layers",
    "LikelyModel": "query.ask.result",
    "LikelyModels": "query.ask.result",
    "Lineage": "query.lineage.result",
    "Lineages": "query.lineage.result",
    "ListedDataset": "query.inventory",
    "ListedDatasets": "query.inventory",
    "ListedModel": "query.inventory",
    "ListedModels": "query.inventory",
    "ModelMap": "query.map.model_map",
    "ModelVectors": "query.export",
    "Neighbour": "query.similar",
    "Prediction": "query.predict.result",
    "PurityResult": "query.purity.result",
    "RankStudy": "query.rank.study",
    "RecoveredImages": "query.invert",
    "RecoveredWords": "query.invert",
    "Report": "query.report.report",
    "Result": "query.results",
    "ShownModel": "query.show",
    "SimilarModels": "query.similar",
    "SqlResult": "query.sql",
    "TextsOfModel": "query.ask.result",
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

# Written by scripts/methods.py from the entry points in pyproject.toml.
"""The methods of Atlas that are questions, for type checkers and editors."""

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

from query.ask.ask import ask as _ask
from query.clusters.question import clusters as _clusters
from query.compare import compare as _compare
from query.depth.depth import depth as _depth
from query.depth.study import depth_study as _depth_study
from query.export import model_vectors as _vectors
from query.features import features as _features
from query.inventory import datasets as _datasets
from query.inventory import models as _models
from query.invert import invert as _invert
from query.layers import layers as _layers
from query.lineage.lineage import lineage as _lineage
from query.lineage.lineage import lineages as _lineages
from query.map.model_map import model_map as _map
from query.predict.evaluation import evaluate as _evaluate_prediction
from query.predict.predict import predict as _predict
from query.predict.predict import predict_many as _predict_many
from query.purity.question import purity as _purity
from query.rank.study import rank_by_depth as _rank
from query.reader import AtlasReader
from query.report.report import report as _report
from query.show import show as _show
from query.similar import similar as _similar
from query.sql import sql as _sql
from query.trace.trace import trace as _trace

P = ParamSpec("P")
R = TypeVar("R")

class Method(Generic[P, R]):
    @overload
    def __get__(self, atlas: None, owner: type) -> Callable[Concatenate[Methods, P], R]: ...
    @overload
    def __get__(self, atlas: Methods, owner: type) -> Callable[P, R]: ...

def method(function: Callable[Concatenate[AtlasReader, P], R]) -> Method[P, R]: ...

class Methods:
    ask = method(_ask)
    clusters = method(_clusters)
    compare = method(_compare)
    datasets = method(_datasets)
    depth = method(_depth)
    depth_study = method(_depth_study)
    evaluate_prediction = method(_evaluate_prediction)
    features = method(_features)
    invert = method(_invert)
    layers = method(_layers)
    lineage = method(_lineage)
    lineages = method(_lineages)
    map = method(_map)
    models = method(_models)
    predict = method(_predict)
    predict_many = method(_predict_many)
    purity = method(_purity)
    rank = method(_rank)
    report = method(_report)
    show = method(_show)
    similar = method(_similar)
    sql = method(_sql)
    trace = method(_trace)
    vectors = method(_vectors)

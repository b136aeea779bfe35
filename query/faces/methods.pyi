# Written by scripts/methods.py from the entry points in pyproject.toml.
"""The methods of Atlas that are questions, for type checkers and editors."""

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

from query.faces.export import model_vectors as _vectors
from query.faces.report.report import report as _report
from query.models.reader import AtlasReader
from query.questions.ask.ask import ask as _ask
from query.questions.bom.bom import bom as _bom
from query.questions.check.check import check as _check
from query.questions.clusters.question import clusters as _clusters
from query.questions.compare import compare as _compare
from query.questions.depth.depth import depth as _depth
from query.questions.depth.study import depth_study as _depth_study
from query.questions.duplicates import duplicates as _duplicates
from query.questions.features import features as _features
from query.questions.identify import identify as _identify
from query.questions.inventory import datasets as _datasets
from query.questions.inventory import models as _models
from query.questions.invert import invert as _invert
from query.questions.layers import layers as _layers
from query.questions.lineage.lineage import lineage as _lineage
from query.questions.lineage.lineage import lineages as _lineages
from query.questions.map.model_map import model_map as _map
from query.questions.predict.evaluation import evaluate as _evaluate_prediction
from query.questions.predict.predict import predict as _predict
from query.questions.predict.predict import predict_many as _predict_many
from query.questions.purity.question import purity as _purity
from query.questions.rank.study import rank_by_depth as _rank
from query.questions.runs import run_path as _run_path
from query.questions.runs import runs as _runs
from query.questions.show import show as _show
from query.questions.similar import similar as _similar
from query.questions.sql import sql as _sql
from query.questions.trace.trace import trace as _trace

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
    bom = method(_bom)
    check = method(_check)
    clusters = method(_clusters)
    compare = method(_compare)
    datasets = method(_datasets)
    depth = method(_depth)
    depth_study = method(_depth_study)
    duplicates = method(_duplicates)
    evaluate_prediction = method(_evaluate_prediction)
    features = method(_features)
    identify = method(_identify)
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
    run_path = method(_run_path)
    runs = method(_runs)
    show = method(_show)
    similar = method(_similar)
    sql = method(_sql)
    trace = method(_trace)
    vectors = method(_vectors)

"""Models to predict for, and answers of a prediction."""

from __future__ import annotations

import numpy as np

from query.predict.heads import Head
from query.predict.target import Target


def target(vector, head=None, author="asker", **facts) -> Target:
    given = {"declared": (), "duplicates": (), "notes": (), "model_id": None}
    found = None if vector is None else np.asarray(vector, np.float32) / np.linalg.norm(vector)
    return Target("asker/model", "base", author, vector=found, head=head or Head(), **given | facts)


def answer(prediction, dataset):
    (found,) = [one for one in prediction.answers if one.dataset == dataset]
    return found

"""Whom a prediction is about, and what it answers."""

from __future__ import annotations

import numpy as np

from query.predict.head_evidence import Head
from query.predict.subject import Subject


def subject(vector, head=None, author="asker", **facts) -> Subject:
    given = {"declared": (), "repeats": (), "notes": (), "model_id": None}
    found = None if vector is None else np.asarray(vector, np.float32) / np.linalg.norm(vector)
    return Subject("asker/model", "base", author, vector=found, head=head or Head(), **given | facts)


def answer(prediction, dataset):
    (found,) = [one for one in prediction.answers if one.dataset == dataset]
    return found

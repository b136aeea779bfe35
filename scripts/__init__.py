"""Tools for development, which the package does not need.

What the others use: ``loopback_hub`` (a Hub on 127.0.0.1), ``family`` (small trained models), ``terminal`` and ``child``
(commands and functions in processes of their own) and ``tables``. ``demo``, ``readme`` and ``notebook`` make the demo and
what the documents show of it; ``ship`` makes the atlas that comes with the package, and ``guide`` runs the commands of
docs/guide on it; ``golden`` compares all numbers of two atlases, and ``count_code`` counts the code.

``reference`` writes the pages of docs/reference. ``bench`` measures speed against promises, ``reproduce`` repeats the original
study, and ``model_types`` builds every model type of transformers. Measurements behind docs/evidence are in ``studies``.
"""

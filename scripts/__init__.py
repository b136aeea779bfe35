"""Tools for development, which the package does not need.

What the others use: ``loopback_hub`` (a Hub on 127.0.0.1), ``family`` (small trained models), ``terminal`` and ``child``
(commands and functions in processes of their own) and ``tables``. ``demo``, ``readme`` and ``notebook`` make the demo and
what the documents show of it; ``ship`` makes the atlas that comes with the package, and ``guide`` runs the commands of
docs/guide on it; ``golden`` compares all numbers of two atlases, and ``count_code`` counts the code.

Measures, each with the page that has its figures: ``adapters``, ``vectors`` (docs/vectors.md), ``arena`` (arena.md), ``ask``
(ask.md), ``bench`` (promises about speed), ``coverage`` (coverage.md), ``depth`` (layers.md), ``lineage`` (lineage.md),
``model_types`` (architectures.md), ``reproduce`` (the original study), ``sampling`` (reading.md), ``scale`` (scale.md,
sharing.md) and ``trace`` (trace.md, ask.md).
"""

"""Where models lie: the Hub, a folder, and what other packages add. Each source is one file; see ``source.Source``.

``registry`` knows which sources there are, and reads what a person typed. ``crawl``, ``claim_filter``, ``mirrors`` and
``hub_base`` belong to the Hub; ``claims``, ``questions`` and ``rows`` are the words in which every source lists models.
"""

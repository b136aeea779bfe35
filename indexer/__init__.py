"""Crawl the fine-tunes of a base model and turn what fine-tuning did to their weights into vectors.

The data flows one way: hub → weights → delta → svd → record → representation → atlas.
"""

__version__ = "0.1.0"

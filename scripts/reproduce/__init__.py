"""The original study repeated: four bases from crawl to figures, the original representation compared with ours.

``python -m scripts.reproduce`` does it offline, on families of real models that stand for the bases;
``python -m scripts.reproduce --live --limit 200`` on the Hub. One folder comes out: ``results.md`` to read,
``results.json`` to compute with, figures, and a page for each base.
"""

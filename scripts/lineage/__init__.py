"""A forest of really trained models whose family tree is known, and how well that tree is found again.

``python -m scripts.lineage --out DIR`` makes the forests, indexes them over a loopback Hub, asks for the lineage of
every model, and sets the answers beside those of MoTHer's published rule.
"""

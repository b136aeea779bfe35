"""A forest of trained models whose family tree is known, and how well ``query lineage`` finds that tree.

``python -m studies.lineage --out DIR`` makes the forests, indexes them over a loopback Hub, asks for the lineage of
every model, and compares the answers with those of MoTHer's published rule.
"""

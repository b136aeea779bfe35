"""Builds: planning the work, running it on this machine or a cluster, and publishing the results.

Plural, because `indexer.build` is a function: once imported, a package of that name would replace it.
"""

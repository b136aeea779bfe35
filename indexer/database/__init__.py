"""How a DuckDB file is opened: locked, compared with schema.sql, and with errors that are ours.

A file may come from a stranger. Whatever it is opened for, it goes through :mod:`indexer.database.door`.
"""

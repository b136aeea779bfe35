"""Opening DuckDB files: securely, compared with schema.sql, and with our own errors.

A file may come from anybody. Every file is opened through :mod:`indexer.database.secure_connection`.
"""

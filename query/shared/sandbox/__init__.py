"""Runs untrusted SQL on a locked connection, in a process without privileges."""

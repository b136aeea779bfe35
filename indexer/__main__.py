"""`python -m indexer` is the same as the installed command."""

from indexer.cli import main

main()

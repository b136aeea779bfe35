"""`python -m query` is the same as the installed command."""

from query.cli import main

main()

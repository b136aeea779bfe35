"""`python -m query` is the same as the installed command."""

from query.faces.cli import main

main()

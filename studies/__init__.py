"""Studies: measurements behind the pages of docs/evidence, each repeated by one command (``python -m studies.NAME``)."""

"""Studies: measurements behind the pages of docs/, each repeated by one command (``python -m studies.NAME``)."""

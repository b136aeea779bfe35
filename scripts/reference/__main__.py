"""Write the pages of docs/reference: ``python -m scripts.reference``.

Run it after a change of a command, an option, an answer's field, a docstring or schema.sql. A test compares the pages with the code.
``python -m scripts.model_types`` writes docs/reference/architectures.md.
"""

from scripts.reference.pages import FOLDER, PAGES

for name, page in PAGES.items():
    (FOLDER / f"{name}.md").write_text(page(), encoding="utf-8")

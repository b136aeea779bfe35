"""README.md as a package page shows it: pictures and links by their whole addresses, which alone show there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class WholeAddresses(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """From README.md; what lies in docs/ is where [project.urls] says that the source is."""
        source = metadata["urls"]["Source"]
        raw = source.replace("//github.com/", "//raw.githubusercontent.com/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^\]]*\]\()(?=docs/)", rf"\1{raw}/main/", text)
        text = re.sub(r"(?<!!)(\[[^\]]*\]\()(?=docs/)", rf"\1{source}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

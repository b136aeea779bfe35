"""A database to ask, and a secret that nobody may read."""

from __future__ import annotations

import hashlib
import os

SECRET = "the secret of another file"


def state(folder):
    """Every file of a folder with its bytes, and every name of the working directory."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return files, sorted(os.listdir())

"""``python -m scripts.loopback_hub ROOT…``: serve repository stores as one Hub until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from scripts.loopback_hub.hub import LoopbackHub
from scripts.loopback_hub.store import StoreError


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.loopback_hub", description="A Hugging Face Hub on loopback."
    )
    parser.add_argument(
        "roots", type=Path, nargs="+", metavar="root", help="a folder of repositories: <root>/<owner>/<name>/…"
    )
    parser.add_argument("--port", type=int, default=0, help="the Hub's port (default: any free one)")
    options = parser.parse_args(arguments)
    try:
        with LoopbackHub(*options.roots, port=options.port) as hub:
            count = hub.prepare()
            print(f"{count} repositories at {hub.endpoint}")
            print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        return 130
    except (StoreError, OSError, OverflowError) as problem:
        print(f"loopback_hub: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m scripts.loopback_hub ROOT…``: serve repository stores as one Hub until Ctrl-C."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from pathlib import Path

from scripts.loopback_hub.hub import LoopbackHub
from scripts.loopback_hub.store import StoreError

_UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def rate_of(text: str) -> float:
    """Bytes per second, from an option's text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give bytes per second, such as 500K, 20M or 1G")
    return float(match[1]) * _UNITS[match[2].upper()]


def port_of(text: str) -> int:
    """A port, from an option's text."""
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def count_of(text: str) -> int:
    """A positive number, from an option's text."""
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.loopback_hub", description="A Hugging Face Hub on loopback."
    )
    parser.add_argument(
        "roots", type=Path, nargs="+", metavar="root", help="a folder of repositories: <root>/<owner>/<name>/…"
    )
    parser.add_argument("--port", type=port_of, default=0, help="the Hub's port (default: any free one)")
    parser.add_argument("--bandwidth", type=rate_of, help="bytes per second of the CDN, as 20M (default: no limit)")
    parser.add_argument("--page-size", type=count_of, default=100, help="rows on a page of a listing (default: 100)")
    options = parser.parse_args(arguments)
    try:
        hub = LoopbackHub(
            *options.roots,
            page_size=options.page_size,
            bandwidth=options.bandwidth,
            port=options.port,
        )
        with hub:
            count = hub.prepare()
            print(f"{count} repositories at {hub.endpoint}")
            print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        return 130
    except (StoreError, OSError) as problem:
        print(f"loopback_hub: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

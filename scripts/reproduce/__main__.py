"""Do the seed's study: crawl its four bases, turn their fine-tunes into vectors, measure, draw.

Every command shown is the one a person would type. The same call again does only what is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from indexer.errors import AtlasError, install
from scripts.family import make_family
from scripts.family.plan import SIZES
from scripts.loopback_hub import LoopbackHub, StoreError
from scripts.reproduce.page import draw_purity, page
from scripts.reproduce.study import BASES, BaseResults, Results, StudiedBase, Subject, build, represent, study
from scripts.terminal import CommandFailed, Terminal

LIVE_LIMIT = 100  # models of each base, unless another number is asked for
# Module → (package, the extra that brings it).
OF_STUDIES = {"matplotlib": ("matplotlib", "studies"), "umap": ("umap-learn", "studies")}
OF_TRAINING = {"peft": ("peft", "demo")}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parse(arguments)
    started = time.monotonic()
    try:
        require_extras(is_live=options.live)
        results = reproduce(options)
    except CommandFailed as failure:
        print(f"The study stopped: {failure}. The same command goes on from here.", file=sys.stderr)
        return 1
    except (AtlasError, StoreError, RuntimeError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.", file=sys.stderr)
        return 130
    print(f"\nAll this took {time.monotonic() - started:.0f} s. Read {options.out / 'results.md'}")
    return 0 if is_sound(results) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    names = [base.id for base in BASES]
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/reproduce"), help="the folder (default: %(default)s)")
    parser.add_argument("--bases", nargs="+", choices=names, default=names, metavar="ID", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--live", action="store_true", help="on the real Hub (default: on families of small real models)"
    )
    parser.add_argument(
        "--limit", type=_count, metavar="N",
        help=f"only the first N models of each base, by downloads (default: all; with --live {LIVE_LIMIT})",
    )  # fmt: skip
    parser.add_argument("--size", choices=SIZES, default="full", help="of the families (default: %(default)s)")
    parser.add_argument(
        "--families", type=Path, default=Path(".demo"), metavar="DIR",
        help="where families are made once and kept (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--figures", choices=["png", "svg", "pdf"], default="png", help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.live and options.limit is None:
        options.limit = LIVE_LIMIT
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def require_extras(*, is_live: bool) -> None:
    """Find what is needed at the end before anything is begun. Raises AtlasError."""
    for module, (package, extra) in {**OF_STUDIES, **({} if is_live else OF_TRAINING)}.items():
        if importlib.util.find_spec(module) is None:
            raise AtlasError(
                f"The study needs {package}, which is not installed.",
                install(extra),
            )


def reproduce(options: argparse.Namespace) -> Results:
    """Do the study and write its folder; what is there already is not done again."""
    out = options.out.resolve()
    (out / "figures").mkdir(parents=True, exist_ok=True)
    chosen = [base for base in BASES if base.id in options.bases]
    with ExitStack() as stack:
        if options.live:
            run, source = Terminal(out), os.environ.get("HF_ENDPOINT", "https://huggingface.co")
            subjects = [Subject(base, base.id) for base in chosen]
        else:
            subjects = [family_of(base, options.families, options.size) for base in chosen]
            hub = stack.enter_context(LoopbackHub(*(subject.family for subject in subjects if subject.family)))
            run, source = Terminal.of_hub(out, hub.endpoint), f"families of small models ({options.size}), trained here"
            print(f"Served together at {hub.endpoint}")
        bases = [build(run, subject, options.limit) for subject in subjects]
        published = represent(run, bases)
        studied: list[BaseResults] = []
        for subject, base in zip(subjects, bases, strict=True):
            studied.append(study(run, subject, base, options.limit, f".{options.figures}"))
            size = None if options.live else options.size
            figure = f"figures/purity.{options.figures}"
            results = Results(source, size, options.limit, tuple(studied), published, figure)
            write(results, out)
    return results


def family_of(studied: StudiedBase, folder: Path, size: str) -> Subject:
    """The family that stands for a base, made now unless it is there; RoBERTa's is the demo's own."""
    name = f"family-{size}" if studied.architecture == "roberta" else f"family-{size}-{studied.architecture}"
    print(f"{studied.family_base} stands for {studied.id}", flush=True)
    return Subject(studied, studied.family_base, make_family(folder / name, size, studied.architecture))


def write(results: Results, out: Path) -> None:
    """Results as numbers, as a page, and the study's own figure."""
    draw_purity(results, out / results.purity_figure)
    results.write(out / "results.json")
    (out / "results.md").write_text(page(results), encoding="utf-8")


def is_sound(results: Results) -> bool:
    """Whether every question had an answer and everything planted ended as expected."""
    replies = [reply for one in results.bases for reply in one.replies.values()]
    checks = [one.check for one in results.bases if one.check]
    return not any(reply.error for reply in replies) and not any(check.mismatches for check in checks)


if __name__ == "__main__":
    sys.exit(main())

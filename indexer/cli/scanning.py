"""`index scan`: what lies in folders and buckets, without an atlas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from indexer.builds.options import ScanOptions
from indexer.cli.options import options_for
from indexer.console.messages import Progress, say
from indexer.console.terminal import emit, output_options
from indexer.errors import AtlasError, BadArgument
from indexer.storage.atomic_files import write_atomically

if TYPE_CHECKING:
    from indexer.scans.report import Scan
    from indexer.scans.scan import ScanEvent


class _View:
    """Shows the events of a scan as bars on stderr, one for each thing that is done."""

    def __init__(self) -> None:
        self._shown: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def __call__(self, event: ScanEvent) -> None:
        """Show one event."""
        if event.note:
            say(event.note)
        if self._shown is None or self._shown.what != event.what:
            self.close()
            self._shown = Progress(event.total, event.what)
        self._shown.update(event.done - self._shown.done, size=event.bytes_read)

    def close(self) -> None:
        """End the bar."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="PLACE…", type=click.UNPROCESSED)
@options_for(ScanOptions)
@click.option("--html", metavar="FILE", help="Also write the page into this file, which names no folder above PLACE.")
@click.option(
    "--fail-on",
    metavar="KINDS",
    default="",
    help="Exit with status 1 if there are models of these kinds: unrelated, broken, duplicate; separated by commas.",
)
@click.option("--atlas", metavar="DIR", help="An atlas whose bases are known too.")
@output_options
@click.pass_context
def scan(
    context: click.Context, places: tuple[str, ...], html: str | None, fail_on: str, atlas: str | None, output: str,
    **chosen: Any,
) -> None:  # fmt: skip
    """Describe the models in folders, files, hf-cache or at addresses: bases, runs, duplicates, what is broken.

    No atlas is needed, and nothing is stored. Models are compared with the bases that they name, where these lie in the
    cache of the Hub's client, and with those given. "unrelated" are models that were not made from the base that they
    name, or from none of those given; "broken" those that are damaged or cannot be reached; "duplicate" equal files.
    """
    from indexer.scans.page import page
    from indexer.scans.report import FAILURES
    from indexer.scans.scan import Scanner

    kinds = list(dict.fromkeys(part.strip() for part in fail_on.split(",") if part.strip()))
    if unknown := [kind for kind in kinds if kind not in FAILURES]:
        raise BadArgument(f"--fail-on {unknown[0]!r} is not one of {', '.join(FAILURES)}.", "")
    file = None if html is None else _checked(html)

    def show(result: Scan) -> None:
        if output == "table":
            say(result.headline)
            emit(result.in_short(), output)
            for note in result.notes:
                say(note)
        else:
            emit(result.to_dict() if output == "json" else result.to_rows(), output)
        if file is not None:
            write_atomically(file, page(result).encode())

    with _View() as view:
        scanner = Scanner(places, atlas, ScanOptions(**chosen), view)
        try:
            result = scanner.run()
        except KeyboardInterrupt as stopped:
            view.close()
            if scanner.read:
                show(scanner.report())
                stopped.args = (f"{len(scanner.read):,} of {len(scanner.units):,} models were read; these are above.",)
            else:
                stopped.args = ("no model was read yet.",)
            raise
    show(result)
    failures = result.failures(kinds)
    for sentence in failures:
        say(sentence)
    if failures:
        context.exit(1)


def _checked(path: str) -> Path:
    """Where a page is to be written. Raises AtlasError if that cannot be done."""
    out = Path(path).expanduser()
    if out.suffix.lower() not in (".html", ".htm"):
        raise BadArgument(f"--html {path!r} does not end in .html.", f"Name it, for example, {out.stem or 'page'}.html")
    if not out.parent.is_dir():
        raise AtlasError(f"There is no folder {out.parent}.", "Make it first.")
    return out


SCANNING = (scan,)

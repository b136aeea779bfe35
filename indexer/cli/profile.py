"""The command that measures what layers keep. A thin skin over the library."""

from __future__ import annotations

from typing import Any

import click

from indexer.console.completion import complete_model
from indexer.console.ranges import FiniteRange
from indexer.console.terminal import atlas_option, emit, output_options
from indexer.errors import AtlasError, require


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_model)
@click.option(
    "--base",
    metavar="ID",
    help="Profile the fine-tunes of this base; default the atlas's only one.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many of them, most downloads first.")
@click.option("--with-untrained", is_flag=True, help="Also the base's architecture with fresh weights, as a yardstick.")
@click.option(
    "--probe", type=click.Choice(["random", "text", "image"]), help="What to ask with; default random, or image."
)
@click.option("--text", metavar="FILE", help="Ask with this text instead of the sentences shipped.")
@click.option("--image", "images", multiple=True, metavar="FILE", help="Ask with this image; give it again for more.")
@click.option("--recover", is_flag=True, help="Also find the input again by gradients, layer by layer.")
@click.option("--exact", is_flag=True, help="Also find it exactly, by search: a certificate, no measure of depth.")
@click.option("--layers", metavar="1,6,12", help="Only these; default all, or 12 evenly spaced.")
@click.option(
    "--recipe",
    type=click.Choice(["default", "seed"]),
    default="default",
    show_default=True,
    help="seed: also the seeds' own descent.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Steps of the seeds' recipe.")
@click.option("--rate", type=FiniteRange(0, 1e6), help="Its first rate.")
@click.option(
    "--shift", type=FiniteRange(0, 1e6), help="σ of the seeds' criterion; default .35 of the embeddings' own."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31), help="Seed of all draws.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 …")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes, a model and a thread each; default 1.")
@click.option("--memory", metavar="SIZE", help="Most for all of them, e.g. 4G; by default what is free.")
@click.option("--dry-run", is_flag=True, help="Only say how many models, bytes and seconds.")
@atlas_option
@output_options
def profile(models: tuple[str, ...], base: str | None, atlas: str, output: str, dry_run: bool, **chosen: Any) -> None:
    """Measure what each layer of MODELS, or of a base's fine-tunes, keeps of its input.

    Noise it bears, what is read off linearly, how broadly it looks, and how far it has moved from the base. Profiles
    of small models are no promise for large ones.
    """
    require("Profiling", "torch", "transformers")
    from indexer.atlas import AtlasFolder
    from indexer.builds.profile_options import base_and_models, profile_options
    from indexer.builds.profiling import profile_base, profile_plan

    folder = AtlasFolder(atlas).require()
    options = profile_options(chosen)
    canonical, named = base_and_models(folder, base, models)
    if dry_run:
        emit(profile_plan(folder, canonical, named, options), output)
        return
    with folder.locked("index profile"):
        report = profile_base(folder, canonical, named, options)
    emit(report.as_row(), output)
    if not report.is_success:
        raise AtlasError("No model was profiled.", "The reasons stand above." if report.refused else "None is indexed.")

"""The commands that ask a model layer by layer: depth, invert, features. Thin skins over the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import FiniteRange, atlas_option, output_options
from query.cli.options import (
    Question,
    base_option,
    details_option,
    opened_atlas,
    print_result,
    seed_option,
    theme_option,
)

if TYPE_CHECKING:
    from query.results import ThemeName

layers_option = click.option("--layers", metavar="1,4", help="Only these; default all, or 12 evenly spaced.")
recipe_option = click.option(
    "--recipe", type=click.Choice(["default", "seed"]), default="default", show_default=True,
    help="seed: the original studies' own.",
)  # fmt: skip
device_option = click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 …")
stem_option = click.option(
    "--stem", metavar="image|VIT", help="Before a language model's layers: a seeded image stem, or that of a named ViT."
)


def _layers(text: str | None) -> tuple[int, ...] | None:
    from indexer.profiles.single import parse_layers

    return parse_layers(text)


@click.command(cls=Question)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option(
    "--against", default="base", show_default=True, metavar="MODEL|base|untrained", help="What to compare with."
)
@click.option("--study", is_flag=True, help="Instead: all profiles of a base, and how they go with the weight changes.")
@base_option()
@click.option("--out", metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
@theme_option
@details_option
@atlas_option
@output_options
def depth(
    model: str | None,
    against: str,
    study: bool,
    base: str | None,
    out: str | None,
    theme: ThemeName,
    details: bool,
    atlas: str,
    output: str,
) -> None:
    """Say what each layer of MODEL keeps of its input, beside where its weights changed.

    MODEL may be a base. `index profile` stores profiles; another model is measured now, and nothing is stored.
    """
    from query.figures import checked_output

    if (model is None) != study:
        raise click.UsageError("Name a MODEL, or ask for --study without one.")
    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        if model is None:
            found = opened.depth_study(base)
            if file is not None:
                found.write(file, theme=theme)
            print_result(found, output, details=details, file=file)
            return
        one = opened.depth(model, against=against, base=base)
        if file is not None:
            one.write(file, theme=theme)
        print_result(one, output, details=details, file=file)


@click.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@click.argument("text", required=False)
@click.option("--image", "images", multiple=True, metavar="FILE", help="Instead of a text; give it again for more.")
@layers_option
@click.option(
    "--recipe",
    type=click.Choice(["default", "blank", "seed"]),
    default="default",
    show_default=True,
    help="blank: from a start that knows nothing; seed: the original study's own.",
)
@click.option("--top", default=1, show_default=True, type=click.IntRange(1, 50), help="Nearest words for each place.")
@click.option("--keep", metavar="1:", help="Only these output positions are seen.")
@click.option("--restrict", is_flag=True, help="Seek the answer among the text's own words.")
@click.option("--shift", type=FiniteRange(0, 1e6), help="σ of the criterion; default .35 of the embeddings' own.")
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Steps of descent.")
@click.option("--rate", type=FiniteRange(0, 1e6), help="First rate of the seeds' recipe.")
@stem_option
@base_option()
@click.option("--out", metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
@seed_option
@device_option
@theme_option
@atlas_option
@output_options
def invert(
    model: str,
    text: str | None,
    layers: str | None,
    out: str | None,
    theme: ThemeName,
    atlas: str,
    output: str,
    **options: Any,
) -> None:
    """Give TEXT, or an image, back from the output of each layer of MODEL.

    Without a text: images, of a ViT or behind an image stem (--stem); by default those of scikit-learn.
    """
    from query.figures import checked_output

    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        found = opened.invert(model, text, layers=_layers(layers), **options)
        if file is not None:
            found.write(file, theme=theme)
        print_result(found, output, file=file)


@click.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@click.option("--out", required=True, metavar="FILE", help="The picture: .png, .svg or .pdf.")
@layers_option
@click.option(
    "--neurons", default="0-7", show_default=True, metavar="0-15", help="Which; all together: all (with --patch)."
)
@click.option("--patch", type=click.IntRange(min=0), help="Only at this patch, from 0; without blur and jitter.")
@click.option("--plain", is_flag=True, help="Without octaves, blur and jitter.")
@recipe_option
@stem_option
@base_option()
@seed_option
@device_option
@theme_option
@atlas_option
@output_options
def features(
    model: str, out: str, layers: str | None, theme: ThemeName, atlas: str, output: str, **options: Any
) -> None:
    """Draw what single neurons of MODEL look for: images found by ascent on their activation."""
    from query.figures import checked_output

    file = checked_output(out)
    with opened_atlas(atlas) as opened:
        found = opened.features(model, layers=_layers(layers), **options)
        found.write(file, theme=theme)
        print_result(found, output, file=file)


DEPTHS = (depth, invert, features)

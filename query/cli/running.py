"""The commands that run a model, unless the answer is stored: what its layers keep, recovered inputs, and neurons."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.console.terminal import DEFAULT_ATLAS, FiniteRange
from query.cli.options import (
    base_option,
    details_option,
    model_argument,
    opened_atlas,
    optional_model,
    out_option,
    picture_file,
    print_result,
    question,
    seed_option,
    theme_option,
)

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.results import ThemeName

_layers_option = click.option("--layers", metavar="1,4", help="Only these layers. Default: all, or 12 evenly spaced.")
_device_option = click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, cuda:1 …")
_stem_option = click.option(
    "--stem",
    metavar="image|VIT",
    help="Patch embedding for a language model: a random one, or that of this ViT.",
)


@question(
    optional_model,
    click.option(
        "--against", default="base", show_default=True, metavar="MODEL|base|untrained", help="Model to compare with."
    ),
    click.option("--study", is_flag=True, help="Compare all profiles of a base with the changes of the weights."),
    base_option,
    out_option(),
    theme_option,
    details_option,
)
def depth(
    model: str | None,
    study: bool,
    out: str | None,
    theme: ThemeName,
    details: bool,
    atlas: str,
    output: str,
    **options: Any,
) -> None:
    """Show how much of its input each layer of MODEL keeps, next to how much its weights changed.

    MODEL may be a base. `index profile` stores profiles; a model without one is measured now and not stored.
    """
    if (model is None) != study:
        raise click.UsageError("Name a MODEL, or use --study without one.")
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        found = opened.depth_study(options["base"]) if model is None else opened.depth(model, **options)
        print_result(found, output, details=details, file=file, theme=theme)


def _atlas_if_there(folder: str) -> AbstractContextManager[Atlas | None]:
    """The atlas, or None where none was named and the default folder does not exist: running a model needs none."""
    return nullcontext() if folder == DEFAULT_ATLAS and not Path(folder).exists() else opened_atlas(folder)


@question(
    model_argument,
    click.argument("text", required=False),
    click.option(
        "--image", "images", multiple=True, metavar="FILE",
        help="An image instead of a text. May be given several times.",
    ),
    _layers_option,
    click.option(
        "--recipe", type=click.Choice(["default", "blank", "original"]), default="default", show_default=True,
        help="blank: start from a blank input. original: the method of the original papers (printed as seed).",
    ),
    click.option(
        "--top", default=1, show_default=True, type=click.IntRange(1, 50),
        help="Number of nearest words for each position.",
    ),
    click.option("--keep", metavar="1:", help="Use only these output positions."),
    click.option("--restrict", is_flag=True, help="Search only among the words of the text."),
    click.option("--shift", type=FiniteRange(0, 1e6), help="σ of the criterion. Default: .35 of the embeddings' own."),
    click.option("--steps", type=click.IntRange(1, 1_000_000), help="Number of steps of gradient descent."),
    click.option("--rate", type=FiniteRange(0, 1e6), help="Initial learning rate of the original method."),
    _stem_option,
    base_option,
    out_option(),
    seed_option,
    _device_option,
    theme_option,
)  # fmt: skip
def invert(model: str, out: str | None, theme: ThemeName, atlas: str, output: str, **options: Any) -> None:
    """Recover TEXT, or an image, from the output of each layer of MODEL.

    Without TEXT, recover images (by default those of scikit-learn). MODEL must then be a ViT, or have an image stem
    (--stem).
    """
    from query.invert import invert

    file = picture_file(out)
    with _atlas_if_there(atlas) as opened:
        found = invert(None, model, **options) if opened is None else opened.invert(model, **options)
        print_result(found, output, file=file, theme=theme)


@question(
    model_argument,
    out_option("The picture: .png, .svg or .pdf.", required=True),
    _layers_option,
    click.option(
        "--neurons", default="0-7", show_default=True, metavar="0-15",
        help="Neurons to draw. all (with --patch): draw all neurons together.",
    ),
    click.option(
        "--patch", type=click.IntRange(min=0), help="Only at this patch, counted from 0; without blur and jitter."
    ),
    click.option("--plain", is_flag=True, help="Search without octaves, blur and jitter."),
    click.option(
        "--module", type=click.Choice(["block", "attention", "mlp"]), default="block", show_default=True,
        help="Where the neurons are: the block's output, its attention heads, or its MLP.",
    ),
    click.option(
        "--recipe", type=click.Choice(["default", "original"]), default="default", show_default=True,
        help="original: the method of the original papers (printed as seed).",
    ),
    _stem_option,
    base_option,
    seed_option,
    _device_option,
    theme_option,
)  # fmt: skip
def features(model: str, out: str, theme: ThemeName, atlas: str, output: str, **options: Any) -> None:
    """Draw what single neurons of MODEL respond to: images found by gradient ascent on their activation."""
    from query.features import features

    file = picture_file(out)
    with _atlas_if_there(atlas) as opened:
        found = features(None, model, **options) if opened is None else opened.features(model, **options)
        print_result(found, output, file=file, theme=theme)


RUNNING = (depth, invert, features)

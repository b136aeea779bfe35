"""The style of all pictures, in a light and a dark theme, and writing them to files; without global state."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from indexer.console.messages import clean
from indexer.console.themes import THEMES, Theme
from indexer.errors import AtlasError, BadArgument, require
from indexer.shared_state import ignored_warnings
from indexer.storage.atomic_files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

FORMATS = (".png", ".svg", ".pdf")
_DOTS_PER_INCH = 300
# Fonts with the scripts that the default font lacks, by their names on common systems.
FURTHER_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Source Han Sans", "Source Han Sans SC",
    "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "IPAGothic", "TakaoGothic", "NanumGothic", "Droid Sans Fallback",
    "Arial Unicode MS",
)  # fmt: skip
_LONGEST_LABEL = 36  # characters of a name from the Hub in a picture


_DRAWING = RLock()
# Our figures have these settings whatever the user's own are: with LaTeX, an id with an underscore stops the drawing.
_SETTINGS = {"text.usetex": False, "text.parse_math": True}
_TICKS = 24  # more than any of our axes has


@contextmanager
def drawing_alone() -> Iterator[None]:
    """Within the block no other thread makes or draws our figures, because threads share matplotlib's settings."""
    import matplotlib

    with _DRAWING, matplotlib.rc_context(cast("Any", _SETTINGS)):
        yield


def drawn_alone(make: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that makes a figure: it runs with our matplotlib settings, in one thread at a time.

    The figure keeps the settings: its texts are set without LaTeX whenever it is drawn, by its user, too.
    """

    @wraps(make)
    def draw_figure(*args: P.args, **kwargs: P.kwargs) -> Figure:
        require("A picture", "matplotlib")
        from matplotlib.ticker import FixedLocator

        with drawing_alone():
            figure = make(*args, **kwargs)
            # A tick that is made later, while the figure is drawn, would have the settings of that moment.
            for axes in figure.axes:
                for axis in (axes.xaxis, axes.yaxis):
                    if not isinstance(axis.get_major_locator(), FixedLocator):
                        axis.get_major_ticks(_TICKS)
            return figure

    return draw_figure


def new_figure(width: float, height: float, theme: str = "light", ax: Axes | None = None) -> tuple[Any, Any]:
    """An empty figure (inches) and its axes, in the theme. Made without pyplot, so that no figure stays open."""
    return styled_grid(width, height, 1, 1, theme, ax)


def styled_grid(
    width: float, height: float, rows: int, columns: int, theme: str = "light", ax: Axes | None = None
) -> tuple[Any, Any]:
    """A figure with ``rows`` × ``columns`` axes (an array of them where there are several).

    ``ax``: an axes of the caller's figure. It is replaced by a SubFigure in its cell, so that legends and titles of the
    picture stay inside the cell. Raises AtlasError for an axes without a cell.
    """
    require("A picture", "matplotlib")
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure: Any = None
    if ax is None:
        figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained", facecolor=colours.background)
    elif (cell := ax.get_subplotspec()) is None:
        raise AtlasError("This `ax` is not a cell of a grid.", "Make it with plt.subplots(…, layout='constrained').")
    else:
        figure = ax.get_figure().add_subfigure(cell, facecolor=colours.background)  # type: ignore[union-attr]
        ax.remove()
    axes = figure.subplots(rows, columns)
    for panel in [axes] if rows * columns == 1 else axes.flat:
        panel.set_facecolor(colours.background)
        panel.tick_params(colors=colours.ink, labelsize=8)
        for text in (panel.title, panel.xaxis.label, panel.yaxis.label):
            text.set_color(colours.ink)
        for spine in panel.spines.values():
            spine.set_color(colours.faint)
    return figure, axes


class Panels:
    """Small multiples: panels of one size in rows, in the style of a theme; see ``styled_grid`` for ``ax``.

    Args:
        counts: the number of panels in each row; the rest of a row stays empty.
        size: width and height of a panel in inches.
        margin: width and height of everything around the panels, in inches.
        least: the least width of the picture in inches.

    Attributes:
        figure: the picture.
        colours: the colours of the theme.
        rows: the panels of each row, from the left.
    """

    def __init__(
        self,
        counts: Sequence[int],
        size: tuple[float, float],
        theme: str = "light",
        ax: Axes | None = None,
        *,
        margin: tuple[float, float] = (0.0, 0.0),
        least: float = 0.0,
    ) -> None:
        columns = max(counts)
        width, height = max(size[0] * columns + margin[0], least), size[1] * len(counts) + margin[1]
        self.colours = THEMES[theme]
        self.figure, axes = styled_grid(width, height, len(counts), columns, theme, ax)
        grid = [axes] if len(counts) * columns == 1 else list(axes.flat)
        self.rows: list[list[Any]] = []
        for start, used in zip(range(0, len(grid), columns), counts, strict=True):
            self.rows.append(grid[start : start + used])
            for panel in grid[start + used : start + columns]:
                panel.set_axis_off()

    def __iter__(self) -> Iterator[Any]:
        """All panels, row by row."""
        return chain.from_iterable(self.rows)

    @property
    def lowest(self) -> list[Any]:
        """The lowest panel of each column, from the left."""
        columns = range(max(len(row) for row in self.rows))
        return [[row[column] for row in self.rows if len(row) > column][-1] for column in columns]

    def title(self, panel: Any, text: str, size: float = 8, **style: Any) -> None:
        """A title above a panel, at its left; ``size`` in points."""
        panel.set_title(text, fontsize=size, **{"loc": "left", "color": self.colours.ink} | style)


def in_rows(count: int, most: int) -> list[int]:
    """How many of ``count`` panels are in each row, if a row has at most ``most``: full rows, then the rest."""
    return [min(most, count - start) for start in range(0, count, most)]


def add_title(figure: Any, text: str, colours: Theme, size: float = 9) -> None:
    """A title at the left of the whole picture; ``size`` in points."""
    figure.suptitle(text, x=0.01, horizontalalignment="left", fontsize=size, color=colours.ink)


def add_legend(
    figure: Any, handles: Sequence[Any], colours: Theme, columns: int, size: float = 7, location: str = "lower left"
) -> None:
    """A legend outside the panels; ``size`` in points."""
    figure.legend(
        handles=handles, loc=f"outside {location}", ncols=columns, fontsize=size, frameon=False, labelcolor=colours.ink
    )


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """A string from the Hub for a picture: without hidden characters, shortened, with ``$`` escaped."""
    text = clean(text)
    if len(text) > longest:
        text = text[: longest * 2 // 3] + "…" + text[len(text) - (longest - 1 - longest * 2 // 3) :]
    return text.replace("$", r"\$")


def model_label(name: str, longest: int = _LONGEST_LABEL) -> str:
    """A model's name in a picture; for a folder, its last part."""
    return label(Path(name).name if name.startswith("/") else name, longest)


def draw(figure: Figure, suffix: str) -> bytes:
    """The figure as the bytes of a file with this suffix; the same figure gives the same bytes."""
    import matplotlib
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    kind = suffix.removeprefix(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    target = io.BytesIO()
    settings: Any = {"svg.hashsalt": "vectors-in-the-wild", "svg.fonttype": "none", "pdf.fonttype": 42}
    # Matplotlib warns about names in scripts without an installed font.
    with drawing_alone(), matplotlib.rc_context(settings), ignored_warnings("Glyph .* missing from"):
        # Other installed fonts supply scripts that the default font lacks (Chinese, Japanese, Korean).
        installed = {font.name for font in fontManager.ttflist}
        further = [name for name in FURTHER_FONTS if name in installed]
        for text in figure.findobj(Text) if further else ():
            families = text.get_fontfamily()
            text.set_fontfamily([*families, *(name for name in further if name not in families)])
        figure.savefig(target, format=kind, metadata=metadata, facecolor=figure.get_facecolor())
    return target.getvalue()


def checked_output(path: str | Path, formats: tuple[str, ...] = FORMATS) -> Path:
    """Check a path before any work is done for it. Raises AtlasError for another suffix or a missing folder."""
    out = Path(path)
    if out.suffix.lower() not in formats:
        *first_formats, last = formats
        kinds = f"{', '.join(first_formats)} or {last}" if first_formats else last
        raise BadArgument(f"{out} does not end in {kinds}.", f"Name it, for example, {out.stem}{formats[0]}")
    if not out.parent.is_dir():
        raise AtlasError(f"There is no folder {out.parent}.", "Make it first.")
    return out


def write_output(path: Path, payload: bytes) -> None:
    """Write a file by rename. Raises AtlasError if it cannot be written."""
    try:
        with replacing(path, sync=False) as file:
            file.write(payload)
    except OSError as error:
        raise AtlasError(f"{path} cannot be written: {error.strerror or error}.", "Choose another `path`.") from error


def show_pixels(panel: Any, image: Any) -> None:
    """An image (channels, height, width) from 0 to 1, without axes."""
    import numpy as np

    pixels = np.asarray(image)
    channels_first = np.repeat(pixels, 3, axis=0) if len(pixels) == 1 else pixels[:3]
    panel.imshow(channels_first.transpose(1, 2, 0), interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])


def row_bars(panel: Any, shares: Any, colours: Any) -> None:
    """A bar for each row of patches, from the top; the dashed line is an even share."""
    import numpy as np

    panel.barh(np.arange(len(shares)), shares, color=colours.palette[0], height=0.8)
    panel.axvline(1 / len(shares), color=colours.rest, linewidth=0.8, linestyle=(0, (3, 2)))
    panel.invert_yaxis()
    panel.set_yticks([])
    panel.tick_params(labelsize=6, length=2)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)

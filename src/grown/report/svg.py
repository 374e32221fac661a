"""matplotlib's SVG, cleaned so that the page's own colours and fonts apply, light or dark."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from grown.report.page_html import clean

# Stand-ins in matplotlib's output for colours that the page's style decides.
INK, SOFT, LINE = "#000001", "#000002", "#000003"
BLUE, ORANGE, GREEN, GREY = "#000004", "#000005", "#000006", "#000007"
NAMES = {INK: "ink", SOFT: "soft", LINE: "line", BLUE: "blue", ORANGE: "orange", GREEN: "green", GREY: "grey"}

WIDTH = 4.7  # inches: on a phone a point is then about a pixel
STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "grown",  # the same file from the same figures
}


def draw(name: str, about: str, height: float, paint: Callable[[Any], None], width: float = WIDTH) -> str:
    """One plot as an SVG element; `paint` gets the empty figure."""
    import matplotlib
    from matplotlib.figure import Figure

    written = StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever the user's own settings are, the page is the same
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has the fonts that matplotlib has not
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue(), name, about)


def _inline(document: str, name: str, about: str) -> str:
    """matplotlib's file as part of a page: names of its own, the page's colours and font, no size."""
    root = ElementTree.fromstring(document)
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            new = _attribute(key.rpartition("}")[2], value, name)
            if new is not None:
                element.set(key.rpartition("}")[2], new)
    for kind in ("metadata", "style"):
        for parent in list(root.iter()):
            for child in parent.findall(kind):
                parent.remove(child)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", clean(about))
    root.set("stroke-linejoin", "round")
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str | None:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    if key in ("style", "clip-path", "fill", "stroke"):
        value = re.sub(r"url\(#", f"url(#{name}-", value)
        value = re.sub(r"#00000[1-7]", lambda found: f"var(--{NAMES[found[0]]})", value)
        return re.sub(r"font: (?:normal )*([\d.]+px)[^;]*", r"font-size: \1", value)
    return value if key not in ("gid",) else None

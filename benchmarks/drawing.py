"""What the pictures have in common: matplotlib where it is there, and colours that everybody can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"  # of Okabe and Ito

STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "svg.hashsalt": "grown",  # the same file from the same figures
}


def pyplot() -> Any:
    """matplotlib's pyplot, without a window."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("a picture needs matplotlib: pip install 'grown[plots]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(STYLE)
    return plt


def save(figure: Any, path: Path, says: str) -> None:
    """Write a picture, as its ending says: svg or png. What it says in words is inside, also for who cannot see it."""
    if path.suffix not in (".svg", ".png"):
        raise SystemExit(f"{path}: a picture is an .svg or a .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"Date": None, "Description": says} if path.suffix == ".svg" else {"Description": says}
    figure.savefig(path, dpi=120, metadata=about)
    pyplot().close(figure)

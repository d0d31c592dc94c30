"""Draw the figures of the pages on methods into docs/images: `python docs/draw.py [NAME ...]`.

Each figure is a function in `drawing` with the name of its image. Figures of inversions run
`hpcfwi run inputs/small.toml` with other keys, once, in build/figures. All these runs together take
about fifteen minutes on a core. `networks`, `field` and `elastic` draw existing runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from drawing import diagrams, formulas, gathers, gradients, inversions
from hpcfwi.report import style

IMAGES = Path(__file__).with_name("images")
COLOURS = 48

FIGURES: tuple[Callable[[], Figure], ...] = (
    formulas.misfits,
    gradients.preconditioners,
    inversions.optimizers,
    inversions.encoding,
    inversions.batches,
    inversions.wavelet,
    inversions.regularizers,
    gathers.conditioning,
    formulas.line_source,
    inversions.priors,
    inversions.networks,
    inversions.field,
    inversions.elastic,
    diagrams.splitting,
)


def main(names: list[str]) -> None:
    """Draw the figures of these names, or all if there are none."""
    for make in FIGURES:
        if not names or make.__name__ in names:
            path = IMAGES / f"{make.__name__}.png"
            style.save(make(), path)
            # Images are downloaded with every clone.
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""What every rank is to know of all shots of a survey: found once, not by each of the ranks.

Collective: each rank looks at a part of the shots, or one rank of each host at all of them.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.bands import Band
from hpcfwi.inversion.preconditioning import rise_from, thin_out
from hpcfwi.model import Grid
from hpcfwi.operators.window import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_a_host
from hpcfwi.survey import Spectrum, Survey


def know_spectrum(survey: Survey, context: Context) -> Survey:
    """The survey, of whose wavelets every rank knows the spectrum; collective."""
    if survey.wavelet.ndim == 1:
        return survey
    parts = context.all_gather(_part_of(survey, context).spectrum)
    return survey.knowing(Spectrum.together(parts))


def limit_survey(survey: Survey, band: Band, context: Context) -> Survey:
    """The survey with its wavelets in a band, which are there once a host; collective."""
    if survey.wavelet.ndim == 1:
        return band.survey(survey, band.filter(survey.wavelet))
    wavelets = once_a_host(partial(band.filter_each, survey.wavelet), context)
    return know_spectrum(band.survey(survey, wavelets), context)


def find_costs(
    aperture: Aperture, grid: Grid, survey: Survey, context: Context
) -> NDArray[np.float64]:
    """What each shot of a survey takes, as `Aperture.costs` has it; collective."""
    if aperture.margin is None:
        return aperture.costs(grid, survey)
    parts = context.all_gather(aperture.costs(grid, _part_of(survey, context)))
    return np.concatenate(parts)


def find_taper(survey: Survey, length: float, grid: Grid, context: Context) -> NDArray[np.float64]:
    """Factors of cells around sources and receivers, once a host; collective.

    length: as `rise_from` has it, m.
    """

    def find() -> NDArray[np.float64]:
        near = chain([survey.sources], survey.listeners_by_parts())
        return rise_from(thin_out(near, grid), length, grid)

    return once_a_host(find, context)


def _part_of(survey: Survey, context: Context) -> Survey:
    """This rank's of the parts into which ranks divide a survey."""
    ends = [rank * survey.n_shots // context.size for rank in (context.rank, context.rank + 1)]
    return survey.between(*ends)

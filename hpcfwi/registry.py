"""The registry of all methods that an input file may name.

To add a method, add a line here. The schema of the input, its errors and its documentation follow
from these tables. A place is a module or an object in it, which is only imported when it is used.
The parameters of models are in `model`.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, Literal

ENGINES = {
    "eager": "hpcfwi.wave.engines.eager",
    "cpu": "hpcfwi.wave.engines.cpu.engine",
    "gpu": "hpcfwi.wave.engines.gpu.engine",
    "deepwave": "hpcfwi.wave.engines.deepwave",
}

# The engines of first-order equations, by the names in `ENGINES`.
FIRST_ORDER_ENGINES = {
    "eager": "hpcfwi.wave.engines.eager_staggered",
    "cpu": "hpcfwi.wave.engines.cpu.staggered",
    "gpu": "hpcfwi.wave.engines.gpu.staggered",
}

EQUATIONS = {
    "acoustic": "hpcfwi.wave.equation:ACOUSTIC",
    "acoustic-density": "hpcfwi.wave.equations:ACOUSTIC_DENSITY",
    "elastic": "hpcfwi.wave.equations:ELASTIC",
    "acoustic-vti": "hpcfwi.wave.equations:ACOUSTIC_VTI",
    "elastic-vti": "hpcfwi.wave.equations:ELASTIC_VTI",
    "elastic-tti": "hpcfwi.wave.equations:ELASTIC_TTI",
    "viscoacoustic": "hpcfwi.wave.equations:viscoacoustic",
    "viscoelastic": "hpcfwi.wave.equations:viscoelastic",
}

MISFITS = {
    "least-squares": "hpcfwi.inversion.misfits:least_squares",
    "normalized": "hpcfwi.inversion.misfits:normalized",
    "correlation": "hpcfwi.inversion.misfits:correlation",
    "envelope": "hpcfwi.inversion.misfits:envelope",
    "huber": "hpcfwi.inversion.misfits:huber",
    "student": "hpcfwi.inversion.misfits:student",
    "transport": "hpcfwi.inversion.misfits:transport",
    "adaptive": "hpcfwi.inversion.misfits:adaptive",
}

DATASETS = {
    "marmousi2": "hpcfwi.datasets:MARMOUSI2",
    "marmousi1": "hpcfwi.datasets:MARMOUSI1",
    "marmousi-window": "hpcfwi.datasets:WINDOW",
    "dome": "hpcfwi.datasets:DOME",
    "dome-section": "hpcfwi.datasets:DOME_SECTION",
}

SAMPLINGS = {
    "sweep": "hpcfwi.inversion.stages:sweep",
    "random": "hpcfwi.inversion.stages:draw_anew",
    "all": "hpcfwi.inversion.stages:take_all",
}

OPTIMIZERS = {
    "adam": "hpcfwi.inversion.optimizers:Adam",
    "sgd": "hpcfwi.inversion.optimizers:GradientDescent",
    "lbfgs": "hpcfwi.inversion.line_search:LBFGS",
    "ncg": "hpcfwi.inversion.line_search:ConjugateGradients",
    "cg": "hpcfwi.inversion.gauss_newton:LinearConjugateGradients",
    "gauss-newton": "hpcfwi.inversion.gauss_newton:GaussNewton",
}

WAVELETS = {
    "known": "hpcfwi.inversion.wavelets:GivenWavelet",
    "estimate": "hpcfwi.inversion.wavelets:Estimate",
    "optimize": "hpcfwi.inversion.wavelets:Optimize",
}

REGULARIZERS = {
    "damping": "hpcfwi.inversion.regularizers:damping",
    "tikhonov": "hpcfwi.inversion.regularizers:tikhonov",
    "tv": "hpcfwi.inversion.regularizers:total_variation",
}

DENOISERS = {
    "tv": "hpcfwi.inversion.wrappers:denoise_tv",
    "nlm": "hpcfwi.inversion.wrappers:denoise_nlm",
}

PARAMETRIZATIONS = {
    "velocity": "hpcfwi.inversion.parameters:VELOCITY",
    "impedance": "hpcfwi.inversion.parameters:IMPEDANCE",
    "lame": "hpcfwi.inversion.parameters:LAME",
    "log": "hpcfwi.inversion.parameters:LOGARITHM",
}

NETWORKS = {
    "siren": "hpcfwi.inversion.networks:Siren",
    "cnn": "hpcfwi.inversion.networks:Cnn",
}

# Choices that are not modules: orders of the differences in space, kinds and formats of histories,
# schedules of shots, and encodings.
Order = Literal[2, 4, 6, 8]
HistoryKind = Literal["snapshots", "boundary", "recompute"]
HistoryFormat = Literal["full", "float32", "bfloat16", "float16", "int8"]
HistoryName = Literal["auto", HistoryKind]
ScheduleName = Literal["static", "dynamic"]
EncodingName = Literal["none", "signs"]


def find(place: str) -> Any:
    """Return the object at a place of a registry."""
    return resolve_name(place)

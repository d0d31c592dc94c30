"""The registry of everything that an input file may name: to add a method, add a line here.

The schema of the input, what errors say of it and its documentation follow from these. A place is a
module, or what a module holds: nothing is imported before it is asked for. The parameters of
models, which are values, are in `model`.
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

MISFITS = {
    "least-squares": "hpcfwi.inversion.misfits.least_squares:least_squares",
    "normalized": "hpcfwi.inversion.misfits.normalized:normalized",
    "correlation": "hpcfwi.inversion.misfits.correlation:correlation",
    "envelope": "hpcfwi.inversion.misfits.envelope:envelope",
    "huber": "hpcfwi.inversion.misfits.huber:huber",
    "student": "hpcfwi.inversion.misfits.student:student",
    "transport": "hpcfwi.inversion.misfits.transport:transport",
    "adaptive": "hpcfwi.inversion.misfits.adaptive:adaptive",
}

DATASETS = {
    "marmousi2": "hpcfwi.datasets.library:MARMOUSI2",
    "marmousi1": "hpcfwi.datasets.library:MARMOUSI1",
    "marmousi-window": "hpcfwi.datasets.library:WINDOW",
    "dome": "hpcfwi.datasets.dome:DOME",
    "dome-section": "hpcfwi.datasets.section:SECTION",
}

SAMPLINGS = {
    "sweep": "hpcfwi.inversion.draws:sweep",
    "random": "hpcfwi.inversion.draws:draw_anew",
    "all": "hpcfwi.inversion.draws:take_all",
}

OPTIMIZERS = {
    "adam": "hpcfwi.inversion.optimizers.first_order:Adam",
    "sgd": "hpcfwi.inversion.optimizers.first_order:GradientDescent",
    "lbfgs": "hpcfwi.inversion.optimizers.line_search:LBFGS",
    "ncg": "hpcfwi.inversion.optimizers.line_search:ConjugateGradients",
    "cg": "hpcfwi.inversion.optimizers.linear:LinearConjugateGradients",
    "gauss-newton": "hpcfwi.inversion.optimizers.gauss_newton:GaussNewton",
}

WAVELETS = {
    "known": "hpcfwi.inversion.wavelets:Known",
    "estimate": "hpcfwi.inversion.wavelets:Estimate",
    "optimize": "hpcfwi.inversion.wavelets:Optimize",
}

REGULARIZERS = {
    "damping": "hpcfwi.inversion.regularizers.damping:damping",
    "tikhonov": "hpcfwi.inversion.regularizers.tikhonov:tikhonov",
    "tv": "hpcfwi.inversion.regularizers.total_variation:total_variation",
}

DENOISERS = {
    "tv": "hpcfwi.inversion.denoisers:denoise_tv",
    "nlm": "hpcfwi.inversion.denoisers:denoise_nlm",
}

NETWORKS = {
    "siren": "hpcfwi.inversion.networks:Siren",
    "cnn": "hpcfwi.inversion.networks:Cnn",
}

# Names that stand for no module of their own: orders of the differences in space; what the way back
# keeps of the way forward, and how its numbers are kept; how shots are dealt to ranks, and how they
# are added up beforehand.
Order = Literal[2, 4, 6, 8]
HistoryKind = Literal["snapshots", "boundary", "recompute"]
HistoryFormat = Literal["full", "float32", "bfloat16", "float16", "int8"]
HistoryName = Literal["auto", HistoryKind]
ScheduleName = Literal["static", "dynamic"]
EncodingName = Literal["none", "signs"]


def find(place: str) -> Any:
    """Return the object at a place of a registry."""
    return resolve_name(place)

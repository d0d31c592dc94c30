"""Physics: waves and their gradients, independent of MPI, files and inversion."""

from hpcfwi.wave.autograd import Acoustic, acoustic, propagate, share_of_mean
from hpcfwi.wave.equation import Attenuation
from hpcfwi.wave.history import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.problem import Gradients
from hpcfwi.wave.simulation import Acquisition, Method, Simulation, simulate, warm_up

__all__ = [
    "Acoustic",
    "Acquisition",
    "Attenuation",
    "Auto",
    "Boundary",
    "Gradients",
    "Method",
    "Recompute",
    "Simulation",
    "Snapshots",
    "acoustic",
    "propagate",
    "share_of_mean",
    "simulate",
    "warm_up",
]

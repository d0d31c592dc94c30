"""Physics: waves and their gradients. Knows nothing of MPI, files or inversion."""

from hpcfwi.wave.acoustic import Acoustic, acoustic, share_of_mean
from hpcfwi.wave.history import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.simulation import Acquisition, Method, ShotGradients, Simulation, simulate, warm_up

__all__ = [
    "Acoustic",
    "Acquisition",
    "Auto",
    "Boundary",
    "Method",
    "Recompute",
    "ShotGradients",
    "Simulation",
    "Snapshots",
    "acoustic",
    "share_of_mean",
    "simulate",
    "warm_up",
]

"""Physics: waves and their gradients. Knows nothing of MPI, files or inversion."""

from hpcfwi.wave.acoustic import acoustic
from hpcfwi.wave.history import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.module import Acoustic, share_of_mean
from hpcfwi.wave.simulation import ShotGradients, Simulation, simulate, warm_up
from hpcfwi.wave.task import Acquisition, Method

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

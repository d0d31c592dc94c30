"""Physics: waves and their gradients. Knows nothing of MPI, files or inversion."""

from hpcfwi.wave.acoustic import ShotGradients, Simulation, acoustic, simulate, warm_up
from hpcfwi.wave.history import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.task import Acquisition, Method

__all__ = [
    "Acquisition",
    "Auto",
    "Boundary",
    "Method",
    "Recompute",
    "ShotGradients",
    "Simulation",
    "Snapshots",
    "acoustic",
    "simulate",
    "warm_up",
]

"""Physics: waves and their gradients. Knows nothing of MPI, files or inversion."""

from hpcfwi.wave.acoustic import Simulation, acoustic, choose_history, simulate, warm_up
from hpcfwi.wave.history import Auto, Boundary, Recompute, Snapshots

__all__ = [
    "Auto",
    "Boundary",
    "Recompute",
    "Simulation",
    "Snapshots",
    "acoustic",
    "choose_history",
    "simulate",
    "warm_up",
]

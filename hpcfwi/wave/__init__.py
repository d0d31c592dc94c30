"""Physics: waves and their gradients. Knows nothing of MPI, files or inversion."""

from hpcfwi.wave.acoustic import Simulation, acoustic, simulate
from hpcfwi.wave.history import Snapshots

__all__ = ["Simulation", "Snapshots", "acoustic", "simulate"]

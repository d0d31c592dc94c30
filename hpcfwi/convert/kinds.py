"""What is in a file, as its name and its content tell."""

from __future__ import annotations

from pathlib import Path

from hpcfwi.errors import InputError
from hpcfwi.storage.hdf5 import open_alone, plain
from hpcfwi.storage.unfinished import FORMAT

SEGY, UNIX, HDF5, NPY, RAW, VTK = "SEG-Y", "Seismic Unix", "HDF5", "NumPy's", "raw", "VTK"
MATLAB = "MATLAB's"
KINDS = {
    **dict.fromkeys((".sgy", ".segy"), SEGY),
    ".su": UNIX,
    **dict.fromkeys((".h5", ".hdf5"), HDF5),
    ".npy": NPY,
    ".mat": MATLAB,
    **dict.fromkeys((".bin", ".raw", ".f32"), RAW),
    ".vti": VTK,
}


def kind_of(path: Path) -> str:
    """By the end of its name; raises `InputError`."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputError(
            str(path),
            f"its name ends with {path.suffix!r}, expected one of {', '.join(KINDS)}",
            "Name it after what is in it: SEG-Y, Seismic Unix, HDF5, NumPy's array, or raw floats.",
        )
    return kind


def holds_gathers(path: Path) -> bool:
    """Whether an HDF5 file is one of gathers, not of a model; raises `InputError`."""
    with open_alone(path) as file:
        found = plain(file.attrs.get("format"))
    return bool(found == FORMAT)

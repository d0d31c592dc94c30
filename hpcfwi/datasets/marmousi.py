"""The Marmousi models: who has published them, and where."""

from __future__ import annotations

from hpcfwi.datasets.dataset import Edition, PublishedDataset
from hpcfwi.model import Grid

_CITATION = (
    "Versteeg, R., 1994, The Marmousi experience: Velocity model determination on a synthetic "
    "complex data set: The Leading Edge, 13(9), 927-936."
)

MARMOUSI2 = PublishedDataset(
    name="marmousi2",
    title="AGL Elastic Marmousi (Marmousi2), P velocity, 17 km by 3.5 km at 20 m",
    licence=(
        "Copyright 2004 Allied Geophysical Laboratory, University of Houston, TX, USA. "
        "Creative Commons Attribution 4.0 International, "
        "https://creativecommons.org/licenses/by/4.0. "
        "The AGL Elastic Marmousi model was created at the University of Houston, and was "
        "released by its authors Gary S. Martin, Robert Wiley and Kurt Marfurt with the "
        "permission of the program director of the Allied Geophysical Labs consortium in "
        "2019. https://wiki.seg.org/wiki/AGL_Elastic_Marmousi"
    ),
    citation=(
        "Martin, G. S., Wiley, R., and Marfurt, K. J., 2006, Marmousi2: An elastic upgrade "
        "for Marmousi: The Leading Edge, 25(2), 156-166."
    ),
    grid=Grid((176, 851), (20.0, 20.0), (0.0, 0.0)),
    editions=(
        Edition(
            file="marmousi_vp_20m_176x851.bin",
            sha256="241c0f90b16c09dc280ecee6e4d009dbebbd243c7256efc73708da43ea34297e",
            contents="P velocity at 20 m, as AzureClusterlessHPC.jl has it",
            urls=(
                "https://raw.githubusercontent.com/microsoft/AzureClusterlessHPC.jl/"
                "4bb481256b2bdc286fa88eb1f3aea5e3a71dbe85/data/marmousi_vp_20m_176x851.bin",
            ),
        ),
        # Both are samples of the same original, and agree where they have a point in common
        Edition(
            file="marmousi.py",
            sha256="dbad466a18d459d11988eb2f5e81de0bce44d93935a34eaaf5d0d71333ad0116",
            contents=(
                "P and S velocity and density at 12.5 m, as sweep-solver has them, rounded to "
                "2 m/s, resampled to 20 m"
            ),
            package=("sweep-solver", "0.3.5", "src/sweep/datasets/marmousi.py"),
        ),
    ),
)

MARMOUSI1 = PublishedDataset(
    name="marmousi1",
    title="Marmousi (IFP, 1988), P velocity, 9.2 km by 3 km at 4 m",
    licence=(
        "Institut Français du Pétrole, 1988; the terms of use are those of "
        "https://doi.org/10.5281/zenodo.16114161"
    ),
    citation=_CITATION,
    grid=Grid((751, 2301), (4.0, 4.0), (0.0, 0.0)),
    editions=(
        Edition(
            file="marmousi_vp.bin",
            sha256="f4302792e84bb7ddbdc9d4d0f963b9df32d9f648960084884127e186119b99dd",
            contents="P velocity at 4 m",
            urls=("https://zenodo.org/records/16114161/files/marmousi_vp.bin?download=1",),
        ),
    ),
)

WINDOW = PublishedDataset(
    name="marmousi-window",
    title=(
        "A window of Marmousi (IFP, 1988), P velocity, z 800 to 2996 m and x 800 to "
        "3996 m at 4 m; positions keep the zero of the whole model"
    ),
    licence=(
        "Institut Français du Pétrole, 1988; distributed with PyLops, "
        "https://github.com/PyLops/pylops, under the GNU LGPL 3.0"
    ),
    citation=_CITATION,
    grid=Grid((550, 800), (4.0, 4.0), (800.0, 800.0)),
    editions=(
        Edition(
            file="poststack_model.npz",
            sha256="79cb823050e839ca80d1f657166ef2dfc148053cc6070100ee18198287320a18",
            contents="P velocity at 4 m, as PyLops has it",
            package=("pylops", "2.8.0", "testdata/avo/poststack_model.npz"),
        ),
    ),
)

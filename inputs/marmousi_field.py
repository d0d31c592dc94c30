"""Make the data of marmousi_field.toml, in two minutes on two cores.

    python inputs/marmousi_field.py [SEED]

1. `hpcfwi forward` simulates a line of 171 shots and 341 receivers on the sea floor, for 6 s.
2. A causal high-pass filter removes almost everything below 3 Hz from the traces. Noise of the
   same band is added, 10 dB below the signal of the whole line.
3. The traces are written as SEG-Y, and `hpcfwi convert` makes gathers from them, with a wavelet
   that is only a guess.

All files are in runs/marmousi_field/data, and take 1.5 GB. The true model is used only for the
model errors that the inversion prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.wave.numerics import ricker

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "runs" / "marmousi_field" / "data"
LINE = {
    "survey.sources.count": 171,
    "survey.receivers.count": 341,
    "survey.dt": 0.004,
    "survey.duration": 6.0,
}
DT = 0.004  # s
LOWEST, HIGHEST = 3.5, 15.0  # Hz, where filters leave half of the power
NOISE = 0.1  # power of the noise over that of the signal: 10 dB

HIGH_PASS = scipy.signal.butter(8, LOWEST, "high", fs=1.0 / DT, output="sos")
LOW_PASS = scipy.signal.butter(4, HIGHEST, "low", fs=1.0 / DT, output="sos")


def main(seed: int = 1) -> None:
    """Write line.sgy and observed.h5, with noise from this seed."""
    settings = [word for key, value in LINE.items() for word in ("--set", f"{key}={value}")]
    hpcfwi("forward", ROOT / "inputs" / "marmousi.toml", *settings, "--output", FOLDER / "clean")
    shutil.copyfile(FOLDER / "clean" / "observed.h5", FOLDER / "recorded.h5")
    with h5py.File(FOLDER / "recorded.h5", "a") as file:
        record(file["data"], seed)
        # hpcfwi would take the file for data that it has simulated itself
        del file.attrs["fingerprint"], file["digests"]
    hpcfwi("convert", FOLDER / "recorded.h5", FOLDER / "line.sgy")
    np.save(FOLDER / "guess.npy", ricker(6.0, 1500, DT, 0.25))
    gathers, guess = FOLDER / "observed.h5", FOLDER / "guess.npy"
    hpcfwi("convert", FOLDER / "line.sgy", gathers, "--wavelet", guess)


def record(data: h5py.Dataset, seed: int) -> None:
    """Filter the traces (shot, receiver, time) of a file, and add noise."""
    size = data.shape[1:]
    signal = noise = 0.0
    for shot in range(len(data)):
        data[shot] = filtered = scipy.signal.sosfilt(HIGH_PASS, data[shot].astype(np.float64))
        signal += float(np.square(filtered).sum())
        noise += float(np.square(make_noise(size, seed, shot)).sum())
    scale = np.sqrt(NOISE * signal / noise)
    for shot in range(len(data)):
        data[shot] += (scale * make_noise(size, seed, shot)).astype(np.float32)


def make_noise(size: tuple[int, ...], seed: int, shot: int) -> NDArray[np.float64]:
    """Return Gaussian noise of a shot (receiver, time), in the band of the signal."""
    white = np.random.default_rng([seed, shot]).standard_normal(size)
    return np.asarray(scipy.signal.sosfilt(LOW_PASS, scipy.signal.sosfilt(HIGH_PASS, white)))


def hpcfwi(*words: object) -> None:
    """Run a command of hpcfwi."""
    subprocess.run([sys.executable, "-m", "hpcfwi", *map(str, words)], check=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

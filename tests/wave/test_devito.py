"""Elastic and viscoelastic waves against Devito, which `make bench` installs:

build/peers/bin/python -m pytest tests/wave/test_devito.py

The equations are written here for Devito, with its staggered grid and its symbolic differences.
Only the weights of the mechanisms of attenuation are those of hpcfwi.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from hpcfwi.wave import propagate
from hpcfwi.wave.equation import Attenuation
from hpcfwi.wave.numerics import ricker

devito = pytest.importorskip("devito", reason="Devito is not installed; `make bench` installs it")

SHAPE, SPACING, DT, SAMPLES = (130, 140), 5.0, 5e-4, 280
# The waves do not come back from the edges to the receivers before the last sample.
SOURCE, RECEIVERS = (60, 65), np.array([[50, 80], [75, 85], [60, 85], [80, 65]])
ATTENUATION = Attenuation(frequency=25.0, band=(5.0, 60.0))
WAVELET = ricker(25.0, SAMPLES, DT, 0.05)


def random_medium(lossy: bool) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(1)

    def smooth(mean: float, spread: float) -> NDArray[np.float64]:
        noise = gaussian_filter(rng.normal(size=SHAPE), 8.0)
        return mean + spread * noise / np.abs(noise).max()

    model = {"vp": smooth(2500.0, 300.0), "vs": smooth(1300.0, 150.0), "rho": smooth(2100.0, 150.0)}
    if lossy:
        model |= {"qp": np.full(SHAPE, 40.0), "qs": np.full(SHAPE, 25.0)}
    return model


def simulate(model: dict[str, NDArray[np.float64]], order: int) -> NDArray[np.float64]:
    """Return the pressure, and vz half a cell below the receivers: (component, receiver, time)."""
    lossy = "qp" in model
    traces = [
        propagate(
            "viscoelastic" if lossy else "elastic",
            {name: torch.tensor(array) for name, array in model.items()},
            SPACING,
            DT,
            torch.tensor(WAVELET),
            SPACING * torch.tensor([[SOURCE]], dtype=torch.float64),
            SPACING * torch.tensor(RECEIVERS + shift)[None],
            attenuation=ATTENUATION if lossy else None,
            components=component,
            order=order,
        )
        for component, shift in (("pressure", [0.0, 0.0]), ("vz", [0.5, 0.0]))
    ]
    return torch.cat(traces).numpy()


def simulate_with_devito(model: dict[str, NDArray[np.float64]], order: int) -> NDArray[np.float64]:
    """Return the same as `simulate`; memory variables are those of Robertsson and others (1994)."""
    devito.configuration["log-level"] = "ERROR"
    extent = [SPACING * (n - 1) for n in SHAPE]
    grid = devito.Grid(SHAPE, extent=extent, dtype=np.float64)
    (z, x), dt = grid.dimensions, grid.stepping_dim.spacing
    points = {"zz": devito.NODE, "xx": devito.NODE, "zx": (z, x)}

    def field(name: str, staggered: Any) -> Any:
        return devito.TimeFunction(name=name, grid=grid, space_order=order, staggered=staggered)

    def array(name: str, values: NDArray[np.float64], staggered: Any = devito.NODE) -> Any:
        made = devito.Function(name=name, grid=grid, space_order=order, staggered=staggered)
        made.data[:] = values
        return made

    def after(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        return np.concatenate([values, values.take([-1], axis)], axis).take(
            np.arange(1, values.shape[axis] + 1), axis
        )

    vp, rho = model["vp"], model["rho"]
    stiff, mu = rho * vp**2, rho * model["vs"] ** 2
    below = after(mu, 0)
    between = 4.0 / (1.0 / mu + 1.0 / below + 1.0 / after(mu, 1) + 1.0 / after(below, 1))
    vz, vx = field("vz", z), field("vx", x)
    stress = {name: field(f"s{name}", place) for name, place in points.items()}
    buoyancy_z = array("bz", 2.0 / (rho + after(rho, 0)), z)
    buoyancy_x = array("bx", 2.0 / (rho + after(rho, 1)), x)
    # Devito calls the axes of the grid x and y.
    zz, xx = vz.forward.dx, vx.forward.dy
    zx = vz.forward.dy + vx.forward.dx

    def rates(kind: str, p: Any, s: Any) -> dict[str, Any]:
        m = array(f"m{kind}", p * stiff)
        lam = array(f"l{kind}", p * stiff - 2.0 * s * mu)
        shear = array(f"g{kind}", s * between, (z, x))
        return {"zz": m * zz + lam * xx, "xx": m * xx + lam * zz, "zx": shear * zx}

    equations = [
        devito.Eq(vz.forward, vz + dt * buoyancy_z * (stress["zz"].dx + stress["zx"].dy)),
        devito.Eq(vx.forward, vx + dt * buoyancy_x * (stress["zx"].dx + stress["xx"].dy)),
    ]
    if "qp" in model:
        (relaxation,) = ATTENUATION.relaxations
        half = 0.5 * dt * relaxation
        unrelaxed, lost = zip(*(ATTENUATION.factors(model[q]) for q in ("qp", "qs")), strict=True)
        changes, losses = rates("u", *unrelaxed), rates("r", *lost)
        for name, place in points.items():
            r = field(f"r{name}", place)
            new = ((1.0 - half) * r - dt * relaxation * losses[name]) / (1.0 + half)
            equations.append(devito.Eq(r.forward, new))
            changes[name] += 0.5 * (r + r.forward)
    else:
        changes = rates("u", 1.0, 1.0)
    for name, rate in changes.items():
        equations.append(devito.Eq(stress[name].forward, stress[name] + dt * rate))
    step = devito.Operator(equations)

    strength = -(vp[SOURCE] ** 2) * np.cumsum(WAVELET) * DT * DT / SPACING**2
    found = np.zeros((2, len(RECEIVERS), SAMPLES))
    i, j = RECEIVERS.T
    for n in range(SAMPLES):
        now, then = n % 2, (n + 1) % 2
        found[0, :, n] = -0.5 * sum(np.asarray(stress[s].data[now])[i, j] for s in ("zz", "xx"))
        step.apply(time_m=n, time_M=n, dt=DT)
        # The velocities lie half a step before and after sample n.
        found[1, :, n] = 0.5 * sum(np.asarray(vz.data[k])[i, j] for k in (now, then))
        for name in ("zz", "xx"):
            stress[name].data[then, SOURCE[0], SOURCE[1]] += strength[n]
    return found


@pytest.mark.parametrize("order", [4, 8])
@pytest.mark.parametrize("lossy", [False, True], ids=["elastic", "viscoelastic"])
def test_traces_agree_with_devito(order: int, lossy: bool) -> None:
    model = random_medium(lossy)
    expected = simulate_with_devito(model, order)
    difference = np.abs(simulate(model, order) - expected).max(axis=(1, 2))
    # Devito writes the weights of its differences with nine digits.
    assert (difference < 1e-7 * np.abs(expected).max(axis=(1, 2))).all()

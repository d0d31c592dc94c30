"""The number of shots that a stage simulates, against arithmetic and against a run."""

from __future__ import annotations

import pytest

from hpcfwi.plan.estimate import count_work
from tests.inversion.examples import N_SHOTS, prepared, read_history

EPOCHS = 10
LBFGS = {"name": "lbfgs", "step": 20.0}


def counted(folder, **inversion):
    changes = {f"inversion.{key}": value for key, value in inversion.items()}
    changes = {"inversion.epochs": EPOCHS, "output.every": EPOCHS, **changes}
    return count_work(prepared(folder, changes))


# Each stage first simulates one shot, with illuminations, to find the scale of exact sums.
SCALING = 1


def least_and_likely(work):
    return work.least.count, work.likely.count


def test_gradient_step_takes_one_simulation_per_shot(tmp_path):
    work = counted(tmp_path, batch=4)
    assert least_and_likely(work) == (40.0 + SCALING, 40.0 + SCALING)
    assert (work.likely.gradients, work.likely.illuminated) == (36.0, 4.0 + SCALING), (
        "illuminated in the last epoch"
    )
    assert counted(tmp_path, batch=[2, 6]).likely.count == pytest.approx(40.0 + SCALING, abs=2.0)
    always = counted(tmp_path, batch=4, precondition={"illumination": 0.01}).likely
    assert (always.gradients, always.illuminated) == (0.0, 40.0 + SCALING)


def test_line_search_reuses_last_gradient_if_shots_are_the_same(tmp_path):
    # At least ten trial models, the first model, and the one illuminated for figures
    assert counted(tmp_path, sampling="all", optimizer=LBFGS).least.count == 10 * (10 + 2) + SCALING
    assert counted(tmp_path, batch=N_SHOTS, optimizer=LBFGS).least.count == 10 * (10 + 2) + SCALING
    assert counted(tmp_path, batch=4, optimizer=LBFGS).least.count == 4 * (10 + 10) + SCALING
    held = counted(tmp_path, batch=1, encoding="signs", hold=5, optimizer=LBFGS)
    assert held.least.count == 10 + 2 + 1 + SCALING


def test_line_search_with_illumination_computes_it_for_every_model(tmp_path):
    lit = {"precondition": {"illumination": 0.01}}
    least = counted(tmp_path, sampling="all", optimizer=LBFGS, **lit).least
    assert (least.gradients, least.illuminated) == (0.0, 10 * (10 + 1) + SCALING), (
        "no extra simulation for figures"
    )


def test_hessian_products_count_two_simulations_per_sampled_shot(tmp_path):
    newton = {"name": "gauss-newton", "step": 20.0, "inner": 6, "sample": N_SHOTS + 1}
    least, likely = least_and_likely(counted(tmp_path, sampling="all", optimizer=newton))
    # In each epoch, the first product is also preceded by one shot
    assert least == 10 * (10 + 2) + SCALING + 10 * 2 * (10 + SCALING)
    assert likely == pytest.approx(10 * (1.1 * 10 + 2) + SCALING + 10 * 2 * (3 * 10 + SCALING))
    sampled = counted(tmp_path, sampling="all", optimizer={**newton, "sample": 3})
    assert sampled.least.count == 10 * (10 + 2) + SCALING + 10 * 2 * (3 + SCALING)


def test_wavelet_estimates_count_forward_simulations(tmp_path):
    work = counted(tmp_path, batch=4, wavelet={"name": "estimate", "every": 5})
    assert work.likely.forwards == 2 * 4
    assert work.likely.count == 40 + 8 + SCALING


def test_line_search_with_optimized_wavelet_does_not_reuse_last_gradient(tmp_path):
    work = counted(tmp_path, sampling="all", optimizer=LBFGS, wavelet="optimize").least
    assert (work.forwards, work.count) == (10, 10 * (10 + 10) + 10 + SCALING)


def test_wavelet_of_each_shot_is_estimated_when_it_is_first_in_an_epoch(tmp_path):
    wavelet = {"name": "estimate", "per": "shot"}
    assert counted(tmp_path, batch=4, wavelet=wavelet).likely.forwards == N_SHOTS
    again = counted(tmp_path, sampling="all", wavelet={**wavelet, "every": 4})
    assert again.likely.forwards == 3 * N_SHOTS, "in epochs 1, 5 and 9"


def test_final_fit_simulates_all_shots_of_a_small_survey(tmp_path):
    assert counted(tmp_path, batch=4).ending == N_SHOTS


@pytest.mark.usefixtures("no_figures")
def test_run_of_gradient_steps_takes_the_counted_number_of_simulations(hpcfwi, tmp_path):
    work = counted(tmp_path, batch=4, epochs=3)
    assert hpcfwi("run", tmp_path / "input.toml") == 0
    *_, last = read_history(tmp_path / "run")
    assert last["simulations"] == work.least.count == work.likely.count


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["lbfgs", "ncg", "gauss-newton"])
@pytest.mark.parametrize("asked", [None, {"illumination": 0.01}])
def test_run_takes_number_of_simulations_within_estimates(name, asked, hpcfwi, tmp_path):
    inversion = {"sampling": "all", "epochs": 4, "optimizer": {"name": name, "step": 20.0}}
    if asked:
        inversion["precondition"] = asked
    work = counted(tmp_path, **inversion)
    assert hpcfwi("run", tmp_path / "input.toml") == 0
    *_, last = read_history(tmp_path / "run")
    assert work.least.count <= last["simulations"] <= 2.0 * work.likely.count

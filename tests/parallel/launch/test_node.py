"""Tests of the devices, threads and network interfaces of a rank; they need no GPU."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.errors import InputError
from hpcfwi.parallel.rendezvous import (
    DeviceShare,
    check_shares,
    count_sharers,
    count_threads,
    find_given,
    find_share,
    find_threads,
    interface_towards,
    list_interfaces,
)


def on_cores(*cores, host="a", threads=None):
    return DeviceShare(host, frozenset(cores), "cpu", threads=threads)


def on_gpu(gpu, host="a", device="cuda:0"):
    return DeviceShare(host, frozenset({0}), device, gpu)


core_sets = st.frozensets(st.integers(0, 7), min_size=1)


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (1, ["cuda:0", "cuda:0", "cuda:0"]),
        (3, ["cuda:0", "cuda:1", "cuda:2"]),
        (0, ["cpu", "cpu", "cpu"]),
    ],
)
def test_rank_takes_the_gpu_of_its_local_rank_or_the_only_one(visible, devices, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(uuid=1))
    assert [find_share("here", rank, gpus=True).device for rank in range(3)] == devices


def test_two_ranks_on_one_gpu_are_an_input_error_that_names_both():
    with pytest.raises(InputError, match=r"rank 2 on a: .* same GPU as rank 0"):
        check_shares([on_gpu("x"), on_gpu("y"), on_gpu("x")])


def test_ranks_allowed_to_share_gpus_know_the_number_of_sharers():
    shares = [on_gpu("x"), on_gpu("y"), on_gpu("x"), on_gpu("x", host="b")]
    check_shares(shares, share_gpus=True)
    assert [count_sharers(shares, rank) for rank in range(4)] == [2, 1, 2, 1]


def test_sharing_gpus_without_a_gpu_is_an_input_error():
    with pytest.raises(InputError, match=r"rank 0 on a: ranks are to share its GPU, but"):
        check_shares([on_cores(0), on_cores(0)], share_gpus=True)
    assert count_sharers([on_cores(0), on_cores(0)], 0) == 1


def test_gpus_of_different_hosts_are_not_shared():
    shares = [on_gpu("x", host="a"), on_gpu("x", host="b")]
    check_shares(shares)
    assert [count_sharers(shares, rank) for rank in range(2)] == [1, 1]


def test_gpus_on_only_some_ranks_are_an_input_error():
    with pytest.raises(InputError, match=r"rank 1 on a: it sees no GPU"):
        check_shares([on_gpu("x"), on_cores(0)])


def test_unbound_ranks_share_the_cores_of_their_host():
    shares = [on_cores(*range(8))] * 3 + [on_cores(*range(8), host="b")]
    assert [count_threads(shares, rank, {}) for rank in range(4)] == [2, 2, 2, 8]


def test_ranks_bound_to_one_core_each_have_one_thread():
    shares = [on_cores(0), on_cores(1)]
    assert [count_threads(shares, rank, {}) for rank in range(2)] == [1, 1]


@given(st.lists(core_sets, min_size=1, max_size=12))
def test_threads_are_between_one_and_the_number_of_cores(masks):
    shares = [on_cores(*mask) for mask in masks]
    threads = [count_threads(shares, rank, {}) for rank in range(len(shares))]
    assert all(1 <= t <= len(mask) for t, mask in zip(threads, masks, strict=True))
    several = [t for t in threads if t > 1]
    assert sum(several) <= len(frozenset.union(*masks))


@pytest.mark.parametrize(("text", "threads"), [("5", 5), ("4,2", 4), ("1", 1)])
def test_omp_num_threads_is_obeyed(text, threads):
    assert count_threads([on_cores(0, 1, threads=text)], 0, {}) == threads


@pytest.mark.parametrize("text", ["many", "0", "-1"])
def test_invalid_omp_num_threads_of_one_rank_is_an_input_error_on_all(text):
    with pytest.raises(InputError, match=r"OMP_NUM_THREADS of rank 1 on b: .* is not a number"):
        check_shares([on_cores(0), on_cores(0, host="b", threads=text)])


def test_default_omp_num_threads_of_torchrun_is_ignored():
    assert find_threads({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}) is None
    assert find_threads({"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}) == "2"
    assert find_threads({"OMP_NUM_THREADS": "1"}) == "1"
    assert find_threads({"OMP_NUM_THREADS": ""}) is None


def test_slurm_cpus_per_task_is_an_upper_limit():
    env = {"SLURM_CPUS_PER_TASK": "4"}
    assert count_threads([on_cores(*range(8))], 0, env) == 4
    assert count_threads([on_cores(0)], 0, env) == 1


def test_share_of_a_process_without_gpus_has_its_cores_and_no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    share = find_share("here", 0, gpus=False)
    assert share.cores == os.sched_getaffinity(0)
    assert (share.device, share.gpu) == ("cpu", None)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_GPUS": "0,1"}, "SLURM_JOB_GPUS=0,1"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "SLURM_GPUS_ON_NODE=4"),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": ""}, None),
        ({"SLURM_JOB_GPUS": "0,1", "ROCR_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_gpus_given_to_a_job_are_found_unless_hidden(env, expected):
    assert find_given(env) == expected


def test_given_gpus_that_torch_does_not_see_are_an_input_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("SLURM_JOB_GPUS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    blind = find_share("here", 0, gpus=True)
    with pytest.raises(InputError) as caught:
        check_shares([blind, blind])
    told = str(caught.value)
    assert told.startswith("rank 0 on here: it was given GPUs (SLURM_JOB_GPUS=2), but torch ")
    assert "--device cpu" in told
    meant = find_share("here", 0, gpus=False)
    check_shares([meant, meant])


def test_loopback_address_belongs_to_the_loopback_interface():
    assert interface_towards("127.0.0.1") == dict(map(reversed, list_interfaces()))["127.0.0.1"]


def test_invalid_address_has_no_interface():
    assert interface_towards("not an address") is None

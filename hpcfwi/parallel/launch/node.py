"""What a rank takes of its host: a GPU, threads, a network interface.

The choices are pure functions of what there is; asking torch and the system what there is
stands beside them. Nothing here communicates.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from hpcfwi.errors import InputError

# What Slurm says of a job's GPUs, what shows some of them to a process, and values for none
GIVEN = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NO_GPUS = ("", "-1", "0x0", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class Share:
    """What one rank has: its host, the cores that it may run on, its device.

    gpu: the identity of its GPU, the same for all ranks that have it, None on a CPU; unseen: what
    says that it was given GPUs, where it wants one and torch sees none.
    """

    host: str
    cores: frozenset[int]
    device: str
    gpu: str | None = None
    unseen: str | None = None


def find_share(host: str, local_rank: int, gpus: bool) -> Share:
    """This rank's share; gpus: whether it takes a GPU where there are any."""
    device = choose_device(torch.cuda.device_count() if gpus else 0, local_rank)
    cores = frozenset(usable_cores())
    if device == "cpu":
        return Share(host, cores, device, unseen=find_given(os.environ) if gpus else None)
    return Share(host, cores, device, str(torch.cuda.get_device_properties(device).uuid))


def find_given(env: Mapping[str, str]) -> str | None:
    """What of the environment says that this process was given GPUs, as NAME=VALUE; None: nothing.

    Who hides them (CUDA_VISIBLE_DEVICES=) means to do without.
    """
    shown = [env[name].strip() for name in VISIBLE if name in env]
    if any(value in NO_GPUS for value in shown):
        return None
    for name in (*GIVEN, *VISIBLE):
        value = env.get(name, "").strip()
        if value not in NO_GPUS and (name, value) != ("SLURM_GPUS_ON_NODE", "0"):
            return f"{name}={value}"
    return None


def choose_device(visible: int, local_rank: int) -> str:
    """The device of one rank: "cpu" or "cuda:i", i counting the GPUs `visible` to its process.

    A process that sees one GPU has been given it by the scheduler, whatever its local rank;
    one that sees several takes its local rank's. Ranks beyond the last GPU start again with
    the first, for `check_shares` to find.
    """
    return f"cuda:{local_rank % visible}" if visible else "cpu"


def check_shares(shares: Sequence[Share], share_gpus: bool = False) -> None:
    """Raise InputError, the same on every rank, unless the ranks' shares, by rank, fit together.

    share_gpus: whether several ranks may have a GPU, and each is to have one.
    """
    for rank, share in enumerate(shares):
        if share.unseen is not None:
            built = torch.version.cuda or getattr(torch.version, "hip", None)
            raise InputError(
                f"rank {rank} on {share.host}",
                f"it was given GPUs ({share.unseen}), and torch {torch.__version__} sees none"
                + ("" if built else ": it is built for CPUs alone"),
                ("See to the driver" if built else "Install a torch for GPUs")
                + ", or say that CPUs are meant: --device cpu, in a program launch(gpus=False).",
            )
    with_gpu = [rank for rank, share in enumerate(shares) if share.gpu is not None]
    if 0 < len(with_gpu) < len(shares):
        without = next(rank for rank, share in enumerate(shares) if share.gpu is None)
        raise InputError(
            f"rank {without} on {shares[without].host}",
            f"it sees no GPU, while rank {with_gpu[0]} on {shares[with_gpu[0]].host} has one",
            "Give every rank a GPU, or show none to any of them (CUDA_VISIBLE_DEVICES=).",
        )
    if share_gpus:
        if not with_gpu:
            raise InputError(
                f"rank 0 on {shares[0].host}",
                "its GPU is to be shared by ranks, and it sees none",
                "Leave --device shared-gpu out, in a program launch(share_gpus=True).",
            )
        return
    owners: dict[tuple[str, str], int] = {}
    for rank in with_gpu:
        share = shares[rank]
        first = owners.setdefault((share.host, str(share.gpu)), rank)
        if first != rank:
            raise InputError(
                f"rank {rank} on {share.host}",
                f"it has the same GPU as rank {first} ({share.device}, {share.gpu})",
                "Start as many ranks on a host as it has GPUs; or let them share these, which is "
                "no faster: --device shared-gpu, in a program launch(share_gpus=True).",
            )


def count_sharers(shares: Sequence[Share], rank: int) -> int:
    """How many ranks have the GPU of this one, itself included; 1 on a CPU."""
    mine = shares[rank]
    if mine.gpu is None:
        return 1
    return sum((share.host, share.gpu) == (mine.host, mine.gpu) for share in shares)


def count_threads(shares: Sequence[Share], rank: int, env: Mapping[str, str]) -> int:
    """Threads of a rank: OMP_NUM_THREADS where it is set, else its part of its cores.

    A core that several ranks may run on counts in parts. SLURM_CPUS_PER_TASK is an upper
    limit. The OMP_NUM_THREADS=1 that torchrun sets by itself does not count.
    """
    set_by_user = env.get("OMP_NUM_THREADS", "")
    if set_by_user and not (set_by_user == "1" and "TORCHELASTIC_RUN_ID" in env):
        return _parse_threads(set_by_user)
    mine = shares[rank]
    users = Counter(core for share in shares if share.host == mine.host for core in share.cores)
    threads = int(sum(Fraction(1, users[core]) for core in mine.cores))
    per_task = env.get("SLURM_CPUS_PER_TASK", "")
    if per_task.isdigit():
        threads = min(threads, int(per_task))
    return max(1, threads)


def interface_towards(address: str) -> str | None:
    """The name of the network interface that leads to an IPv4 address; None if unknown."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # a datagram socket only looks up the route
            own = probe.getsockname()[0]
        except OSError:
            return None
    return next((name for name, ip in list_interfaces() if ip == own), None)


def list_interfaces() -> list[tuple[str, str]]:
    """The network interfaces of this host that have an IPv4 address, with it (Linux)."""
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, request)
            except OSError:  # it has no IPv4 address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def usable_cores() -> set[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _parse_threads(text: str) -> int:
    """The first number of a list such as "4" or "4,2" (threads at each level of nesting)."""
    first = text.split(",")[0].strip()
    if not first.isdigit() or int(first) == 0:
        raise InputError(
            "OMP_NUM_THREADS",
            f"{text!r} is not a number of threads",
            "Set it to a whole number from 1 on, or unset it.",
        )
    return int(first)

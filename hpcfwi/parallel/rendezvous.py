"""The meeting of ranks: an address, a port, the job's secret, and what each takes of its host.

A rank takes a GPU, threads and a network interface. The choices are pure functions of what there
is; the functions that ask torch and the system stand beside them.

Ranks find each other over MPI where it knows them, and over torchrun's own store where it does not.
They then share a `store`, on which `launch` starts torch.distributed. Sockets on which libraries
listen are shut for newcomers once all ranks have come; those do not ask who connects. The store
does, and stays open.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store as TorchStore
from torch.distributed.rendezvous import rendezvous

from hpcfwi.errors import InputError
from hpcfwi.parallel.store import Place, Server, Store, local_address, make_secret

if TYPE_CHECKING:
    from mpi4py import MPI


# What Slurm says of a job's GPUs, what shows some of them to a process, and values for none
GIVEN = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NO_GPUS = ("", "-1", "0x0", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class Share:
    """The host, cores and device of one rank.

    gpu: the identity of its GPU, the same for all ranks that share it, None on a CPU; unseen: the
    variable by which it was given GPUs, if it wants one and torch sees none.
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
    """Return the variable that says that this process was given GPUs, as NAME=VALUE, or None.

    An empty CUDA_VISIBLE_DEVICES means that none are wanted.
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
    """Return the number of ranks with the GPU of this one, itself included; 1 on a CPU."""
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


_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_DROP = bytes([0x06, 0, 0, 0, 0, 0, 0, 0])  # the program "return 0", of classic BPF: take nothing


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


@contextmanager
def shut_afterwards() -> Iterator[None]:
    """Let nobody come to the sockets that are opened to listen within, when it ends well.

    Whoever has come stays connected. The system drops what reaches such a socket, so that a
    stranger can neither stand in for a rank nor use up this process's descriptors.
    """
    before = set(_listening().values())
    yield
    for number, identity in _listening().items():
        if identity not in before:
            _shut(number)


def _listening() -> dict[int, int]:
    """This process's network sockets that listen: by descriptor, which one it is."""
    found: dict[int, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it may be closed meanwhile
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as known:
                is_network = known.family in (socket.AF_INET, socket.AF_INET6)
                if is_network and known.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[int(entry.name)] = os.fstat(known.fileno()).st_ino
    return found


def _shut(number: int) -> None:
    code = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = _Program(1, ctypes.cast(code, ctypes.c_void_p))
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as known:
        known.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, bytes(program))


LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT = 2.0  # s, to an address of rank 0
# Processes that a person or an operator of jobs starts may begin long after one another.
MEETING_WAIT = timedelta(minutes=10)
SECRET = "HPCFWI_SECRET"
_WORD = 32  # letters


class MpiExchange:
    """The exchange between ranks of a communicator before they have a store; collective."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.rank, self.size, self._comm = comm.rank, comm.size, comm

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank; anything that JSON knows."""
        return self._comm.allgather(value)

    def forget(self) -> None:
        """Leave nothing of what was said to those who look later: MPI keeps nothing."""


class TorchrunExchange:
    """The same through the store that torch's variables lead to: torchrun's, or rank 0's own.

    Rank 0's is there for as long as this object. Raises `InputError` where the ranks do not meet
    within `MEETING_WAIT`; timeout: how long a rank waits for a value of another one afterwards.
    """

    def __init__(self, timeout: timedelta) -> None:
        try:
            store, self.rank, self.size = next(rendezvous("env://", timeout=MEETING_WAIT))
        except dist.DistError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise InputError(
                f"rank {os.environ['RANK']}",
                f"the {os.environ['WORLD_SIZE']} ranks did not meet at {place}, which "
                f"MASTER_ADDR and MASTER_PORT name, in {MEETING_WAIT}: {reason}",
                "Start all ranks within this time and beside each other, RANK counted from 0, with "
                "the address of the host of rank 0 and a port that is free there.",
            ) from error
        store.set_timeout(timeout)
        self._store: TorchStore = store
        self._rounds = 0

    def all_gather(self, value: Any) -> list[Any]:
        self._rounds += 1
        self._store.set(self._key(self._rounds, self.rank), json.dumps(value))
        keys = [self._key(self._rounds, rank) for rank in range(self.size)]
        return [json.loads(self._store.get(key)) for key in keys]

    def forget(self) -> None:
        self.all_gather(None)  # by then, all have read all that was said before
        for number in range(1, self._rounds):
            self._store.delete_key(self._key(number, self.rank))

    def _key(self, number: int, rank: int) -> str:
        return f"hpcfwi/{number}/{rank}"


Exchange = MpiExchange | TorchrunExchange


def open_store(exchange: Exchange, timeout: timedelta) -> Store:
    """The ranks' store, which rank 0 serves; collective.

    Where all ranks are on one host no port is opened for it; else one, on the first address of
    rank 0's that all can reach. The job's secret is in the variable HPCFWI_SECRET of all ranks, or
    else made by rank 0. The variables MASTER_ADDR and MASTER_PORT are set.
    Raises `InputError` on all ranks where there is no such address.
    """
    master = _find_master(exchange)
    _choose_interface(master)
    given = os.environ.get(SECRET)
    server, told = None, None
    if exchange.rank == 0:
        secret = given.encode() if given else make_secret()
        server = Server(local_address() if master == LOOPBACK else master, secret)
        told = [*server.place, None if given else secret.hex()]
    address, port, known = exchange.all_gather(told)[0]
    # Anybody can write into torchrun's store: a secret that was given is not taken from there
    secret = given.encode() if given else bytes.fromhex(known or "")
    store = Store(Place(address, port), secret, timeout, server)
    exchange.forget()
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(port or _free_port()))
    return store


def _find_master(exchange: Exchange) -> str:
    """An address of rank 0 that every rank can connect to.

    Ranks try it out, because what a host's name resolves to may be its loopback address, and a host
    may have interfaces that the others do not see. They ask for a word there: an address may be
    that of two hosts, and somebody else answer at one of them.
    """
    hosts = exchange.all_gather(socket.gethostname())
    if len(set(hosts)) == 1:
        return LOOPBACK
    with contextlib.ExitStack() as held:
        own: list[tuple[str, int]] = []
        word = secrets.token_hex(_WORD // 2)
        if exchange.rank == 0:
            for _, ip in list_interfaces():
                if not ip.startswith("127."):
                    door = held.enter_context(socket.create_server((ip, 0), backlog=1024))
                    threading.Thread(target=_say, args=(door, word), daemon=True).start()
                    own.append(door.getsockname()[:2])
        doors, word = exchange.all_gather((own, word))[0]
        reached = exchange.all_gather([ip for ip, port in doors if _hears(ip, port, word)])
        for ip, port in own:  # let the threads see that it is over
            with contextlib.suppress(OSError):
                socket.create_connection((ip, port), CONNECT_TIMEOUT).close()
    for ip, _ in doors:
        if all(ip in found for found in reached):
            return str(ip)
    raise InputError(
        f"network of {hosts[0]}",
        f"none of its addresses ({', '.join(ip for ip, _ in doors) or 'no IPv4'}) "
        "can be reached by all ranks",
        "Look at the network and the firewall between the hosts.",
    )


def _say(door: socket.socket, word: str) -> None:
    """Say the word to whoever comes, until the door is closed."""
    with contextlib.suppress(OSError):
        while True:
            guest, _ = door.accept()
            with guest, contextlib.suppress(OSError):
                guest.sendall(word.encode())


def _hears(address: str, port: int, word: str) -> bool:
    """Return True if the server at an address sends this word."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), CONNECT_TIMEOUT) as connection,
    ):
        return connection.recv(_WORD, socket.MSG_WAITALL) == word.encode()
    return False


def _free_port() -> int:
    """A port that nobody listens on now, for programs that want to know one."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _choose_interface(master: str) -> None:
    """Bind gloo to the interface that leads to the master, unless the user has chosen one.

    Left alone, gloo takes the address that the host's name resolves to, on some systems
    127.0.1.1, to which nothing is bound.
    """
    interface = interface_towards(master)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)

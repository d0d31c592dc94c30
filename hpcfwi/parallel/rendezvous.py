"""The rendezvous of ranks: an address, a port, a secret, and each rank's cores and device.

Ranks find each other over MPI if MPI knows them, and otherwise over torchrun's store. They then
share a `store`, with which `launch` starts torch.distributed. Gloo's sockets do not authenticate,
and are closed for new connections when all ranks have connected. The store authenticates and stays
open.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
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
from hpcfwi.parallel.store import Address, Server, Store, StoreError, local_address, make_secret

if TYPE_CHECKING:
    from mpi4py import MPI


LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT = timedelta(seconds=2)  # to an address of rank 0
# Processes that are started by hand or by an operator may begin at very different times.
MEETING_WAIT = timedelta(minutes=10)
SECRET = "HPCFWI_SECRET"


class StoreExchange:
    """The exchange of values between some ranks through a store, in place of MPI's communicator.

    rank: number of this rank; size: number of ranks; name: of this exchange, in the keys.
    """

    def __init__(self, store: TorchStore, rank: int, size: int, name: str = "hpcfwi") -> None:
        self._store, self.rank, self.size, self._name = store, rank, size, name
        self._rounds = 0

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; any values that JSON can represent."""
        self._rounds += 1
        self._store.set(self._key(self._rounds, self.rank), json.dumps(value))
        keys = [self._key(self._rounds, rank) for rank in range(self.size)]
        return [json.loads(self._store.get(key)) for key in keys]

    def forget(self) -> None:
        """Remove the exchanged values."""
        self.allgather(None)  # after this, all ranks have read all earlier values
        for number in range(1, self._rounds):
            self._store.delete_key(self._key(number, self.rank))

    def _key(self, number: int, rank: int) -> str:
        return f"{self._name}/{number}/{rank}"


class EnvironmentExchange(StoreExchange):
    """The exchange of values through the store of torchrun, or through one that rank 0 serves.

    Torch's variables have the address of the store. A store of rank 0 exists as long as this
    object. timeout: time that a rank waits for a value of another one. Raises `InputError` if the
    ranks do not connect within `MEETING_WAIT`.
    """

    def __init__(self, timeout: timedelta) -> None:
        try:
            store, rank, size = next(rendezvous("env://", timeout=MEETING_WAIT))
        except dist.DistError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise InputError(
                f"rank {os.environ['RANK']}",
                f"the {os.environ['WORLD_SIZE']} ranks did not connect within {MEETING_WAIT} at "
                f"{place}, the address in MASTER_ADDR and MASTER_PORT: {reason}",
                "Start all ranks within this time, with RANK counted from 0, the address of the "
                "host of rank 0, and a port that is free there.",
            ) from error
        store.set_timeout(timeout)
        super().__init__(store, rank, size)


def open_store(exchange: MPI.Comm | StoreExchange, timeout: timedelta) -> Store:
    """Return the store of the ranks, which rank 0 serves; collective.

    If all ranks are on one host, no port is opened. Otherwise there is one port, on the first
    address of rank 0 that all ranks can reach. The secret of the job is the variable HPCFWI_SECRET
    of all ranks, or rank 0 makes one. The variables MASTER_ADDR and MASTER_PORT are set for other
    programs. Raises `InputError` on all ranks if there is no such address.
    """
    hosts = exchange.allgather(socket.gethostname())
    given = os.environ.get(SECRET)
    servers: dict[Address, Server] = {}
    message = None
    if exchange.rank == 0:
        secret = given.encode() if given else make_secret()
        own = [ip for _, ip in list_interfaces() if not ip.startswith("127.")]
        for address in [local_address()] if len(set(hosts)) == 1 else own:
            server = Server(address, secret)
            servers[server.place] = server
        with socket.create_server((LOOPBACK, 0)) as probe:
            message = [*servers], None if given else secret.hex(), probe.getsockname()[1]
    try:
        places, known, free_port = exchange.allgather(message)[0]
        # The value `known` is not used if a secret is given, as any process can write to torchrun's
        # store
        secret = given.encode() if given else bytes.fromhex(known or "")
        place = _choose_place([Address(*place) for place in places], secret, hosts, exchange)
        store = Store(place, secret, timeout, servers.pop(place, None))
    finally:
        for server in servers.values():
            server.close()
    if isinstance(exchange, StoreExchange):
        exchange.forget()
    master = LOOPBACK if place.is_local else place.address
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(free_port))
    # By default gloo takes the address to which the name of the host resolves. On some systems this
    # is 127.0.1.1, to which nothing is bound.
    interface = interface_towards(master)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return store


def _choose_place(
    places: list[Address],
    secret: bytes,
    hosts: list[str],
    exchange: MPI.Comm | StoreExchange,
) -> Address:
    """Return the first of these places of a store at which every rank can connect; collective.

    Ranks try them, because a host may have interfaces that the others cannot reach, or an address
    that another host has too.
    """
    if any(place.is_local for place in places):
        return places[0]
    for place in places:
        if all(exchange.allgather(_can_connect(place, secret))):
            return place
    raise InputError(
        f"network of {hosts[0]}",
        f"none of its addresses ({', '.join(place.address for place in places) or 'no IPv4'}) "
        "can be reached by all ranks",
        "Check the network and the firewall between the hosts, and that HPCFWI_SECRET, if it is "
        "set, is the same on all of them.",
    )


def _can_connect(place: Address, secret: bytes) -> bool:
    try:
        Store(place, secret, CONNECT_TIMEOUT).close()
    except StoreError:
        return False
    return True


_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_DROP = bytes([6, 0, 0, 0, 0, 0, 0, 0])  # the classic BPF program "return 0": drop every packet


@contextmanager
def shut_afterwards() -> Iterator[None]:
    """Let sockets that begin to listen within the block accept no new connections after its end.

    Existing connections stay open. The system drops packets to such a socket, so that another
    process can neither pose as a rank nor use up the descriptors of this process. This is not done
    if the block raises an exception.
    """
    before = set(_listening().values())
    yield
    for number, identity in _listening().items():
        if identity not in before:
            _shut(number)


def _listening() -> dict[int, int]:
    """Return the listening network sockets of this process, as the inodes of descriptors."""
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
    program = struct.pack("HP", 1, ctypes.addressof(code))  # the length and the address
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as known:
        known.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


# Variables of the GPUs of a job (Slurm) and of those that a process sees; values that mean none.
GIVEN = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NO_GPUS = ("", "-1", "0x0", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class DeviceShare:
    """The host, cores and device of one rank.

    gpu: the identity of its GPU, the same for all ranks that share it, None on a CPU; unseen: a
    variable that gives GPUs to this rank although torch sees none, as NAME=VALUE, None otherwise;
    threads: OMP_NUM_THREADS of this rank if the user has set it.
    """

    host: str
    cores: frozenset[int]
    device: str
    gpu: str | None = None
    unseen: str | None = None
    threads: str | None = None


def find_share(host: str, local_rank: int, gpus: bool) -> DeviceShare:
    """Return the share of this rank; gpus: True if it takes a GPU if there are any.

    If the process sees one GPU, the scheduler has given it this one. If it sees several, it takes
    that of its local rank. Ranks beyond the last GPU start again with the first, which
    `check_shares` then reports.
    """
    cores, visible = frozenset(os.sched_getaffinity(0)), torch.cuda.device_count() if gpus else 0
    threads = find_threads(os.environ)
    if not visible:
        unseen = find_given(os.environ) if gpus else None
        return DeviceShare(host, cores, "cpu", unseen=unseen, threads=threads)
    device = f"cuda:{local_rank % visible}"
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    return DeviceShare(host, cores, device, gpu, threads=threads)


def find_threads(env: Mapping[str, str]) -> str | None:
    """Return OMP_NUM_THREADS, None if it is not set or is the 1 that torchrun sets by default."""
    text = env.get("OMP_NUM_THREADS", "")
    return None if text == "1" and "TORCHELASTIC_RUN_ID" in env else text or None


def find_given(env: Mapping[str, str]) -> str | None:
    """Return the variable that gives GPUs to this process, as NAME=VALUE, or None.

    An empty CUDA_VISIBLE_DEVICES means that the process is to use no GPU.
    """
    shown = [env[name].strip() for name in VISIBLE if name in env]
    if any(value in NO_GPUS for value in shown):
        return None
    for name in (*GIVEN, *VISIBLE):
        value = env.get(name, "").strip()
        if value not in NO_GPUS and (name, value) != ("SLURM_GPUS_ON_NODE", "0"):
            return f"{name}={value}"
    return None


def check_shares(shares: Sequence[DeviceShare], share_gpus: bool = False) -> None:
    """Raise InputError, the same on every rank, unless the shares of the ranks are consistent.

    share_gpus: True if several ranks may share a GPU; each rank must then have one.
    """
    for rank, share in enumerate(shares):
        if share.threads is not None and not _parse_threads(share.threads):
            raise InputError(
                f"OMP_NUM_THREADS of rank {rank} on {share.host}",
                f"{share.threads!r} is not a number of threads",
                "Set it to a whole number of 1 or more, or unset it.",
            )
        if share.unseen is not None:
            built = torch.version.cuda or getattr(torch.version, "hip", None)
            raise InputError(
                f"rank {rank} on {share.host}",
                f"it was given GPUs ({share.unseen}), but torch {torch.__version__} sees none"
                + ("" if built else ": it is built for CPUs only"),
                ("Check the driver" if built else "Install a torch for GPUs")
                + ", or request CPUs: --device cpu, in a program launch(gpus=False).",
            )
    with_gpu = [rank for rank, share in enumerate(shares) if share.gpu is not None]
    if 0 < len(with_gpu) < len(shares):
        without = next(rank for rank, share in enumerate(shares) if share.gpu is None)
        raise InputError(
            f"rank {without} on {shares[without].host}",
            f"it sees no GPU, while rank {with_gpu[0]} on {shares[with_gpu[0]].host} has one",
            "Give every rank a GPU, or hide all GPUs (CUDA_VISIBLE_DEVICES=).",
        )
    if share_gpus:
        if not with_gpu:
            raise InputError(
                f"rank 0 on {shares[0].host}",
                "ranks are to share its GPU, but it sees none",
                "Leave out --device shared-gpu, in a program launch(share_gpus=True).",
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
                "Start one rank per GPU of a host; or let ranks share GPUs, which is not faster: "
                "--device shared-gpu, in a program launch(share_gpus=True).",
            )


def count_sharers(shares: Sequence[DeviceShare], rank: int) -> int:
    """Return the number of ranks that use the GPU of this rank, including it; 1 on a CPU."""
    mine = shares[rank]
    if mine.gpu is None:
        return 1
    return sum((share.host, share.gpu) == (mine.host, mine.gpu) for share in shares)


def count_threads(shares: Sequence[DeviceShare], rank: int, env: Mapping[str, str]) -> int:
    """Return the number of threads of a rank: OMP_NUM_THREADS if set, otherwise its share of cores.

    A core on which several ranks may run is divided between them. SLURM_CPUS_PER_TASK is an upper
    limit of that share.
    """
    mine = shares[rank]
    if mine.threads is not None:
        return _parse_threads(mine.threads)
    users = Counter(core for share in shares if share.host == mine.host for core in share.cores)
    threads = int(sum(Fraction(1, users[core]) for core in mine.cores))
    per_task = env.get("SLURM_CPUS_PER_TASK", "")
    if per_task.isdigit():
        threads = min(threads, int(per_task))
    return max(1, threads)


def interface_towards(address: str) -> str | None:
    """Return the name of the network interface that leads to an IPv4 address; None if unknown."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # a datagram socket only looks up the route
            own = probe.getsockname()[0]
        except OSError:
            return None
    return next((name for name, ip in list_interfaces() if ip == own), None)


def list_interfaces() -> list[tuple[str, str]]:
    """Return name and address of each interface of this host with an IPv4 address (Linux)."""
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


def _parse_threads(text: str) -> int:
    """Return the first number of a list such as "4" or "4,2" (threads at each nesting level).

    It is 0 if this is not a number of threads.
    """
    first = text.split(",")[0].strip()
    return int(first) if first.isdigit() else 0

"""How ranks that were started find each other: an address, a port, and the job's secret.

Over MPI where it knows the ranks, over torchrun's own store where it does not. What they then have
is a `store`; torch.distributed is started on it in `launch`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store as TorchStore
from torch.distributed.rendezvous import rendezvous

from hpcfwi.errors import InputError
from hpcfwi.parallel.launch.node import interface_towards, list_interfaces
from hpcfwi.parallel.store.connection import Store
from hpcfwi.parallel.store.messages import make_secret
from hpcfwi.parallel.store.server import Place, Server, local_address

if TYPE_CHECKING:
    from mpi4py import MPI

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT = 2.0  # s, to an address of rank 0
# Processes that a person or an operator of jobs starts may begin long after one another.
MEETING_WAIT = timedelta(minutes=10)
SECRET = "HPCFWI_SECRET"
_WORD = 32  # letters


class MpiExchange:
    """What the ranks of a communicator have in common before they have a store.

    Its calls are collective.
    """

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
    """Whether it is this word that is said there."""
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

"""Two nodes under Patroni, on loopback.

In: tools and a directory. Out: a cluster that is asked for its leader, and whose leader can be taken away. All that was
started is ended in the end, by its process id.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tools.chaos.failover.tools import Tools

T = TypeVar("T")
TTL = 20  # the least that Patroni takes
LOOP_WAIT = 1
RETRY_TIMEOUT = 3
START_TIMEOUT = 90.0


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def until(condition: Callable[[], T], what: str, seconds: float = START_TIMEOUT) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)
    return answer


@dataclass
class Node:
    """One node: a Patroni agent and the Postgres that it looks after."""

    name: str
    home: Path
    port: int
    api: int
    agent: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def postmaster(self) -> int | None:
        """The process id of its Postgres."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.home / "data" / "postmaster.pid").read_text().split("\n")[0])
        return None

    def processes(self) -> list[int]:
        """Agent, postmaster, and all that these two have started; parents first."""
        agent = [self.agent.pid] if self.agent is not None and self.agent.poll() is None else []
        postmaster = [self.postmaster] if self.postmaster is not None else []
        return [*agent, *postmaster, *(child for parent in (*agent, *postmaster) for child in _children(parent))]


def _children(ancestor: int) -> list[int]:
    """All descendants of a process, parents first."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [ancestor]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


class Cluster:
    """etcd and two nodes. `synchronous`: Patroni's `synchronous_mode`."""

    def __init__(self, tools: Tools, home: Path, *, synchronous: bool) -> None:
        self._tools = tools
        self._home = home
        self._synchronous = synchronous
        self._password = secrets.token_hex(16)
        self._etcd_port, peer, *ports = free_ports(6)
        self._peer_port = peer
        self._etcd: subprocess.Popen[bytes] | None = None
        self.nodes = [Node(f"node{n + 1}", home / f"node{n + 1}", ports[n], ports[2 + n]) for n in range(2)]

    @property
    def dsn(self) -> str:
        """Both hosts, as an application names them."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres:{self._password}@{hosts}/postgres"

    def dsn_of(self, node: Node) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{node.port}/postgres"

    def start(self) -> None:
        """Start everything; returns when the standby streams."""
        self._home.mkdir()
        self._tools.own(self._home)
        local = "http://127.0.0.1"
        self._etcd = self._tools.start(
            [
                *(self._tools.etcd, "--data-dir", self._home / "etcd", "--enable-v2=true"),
                *("--listen-client-urls", f"{local}:{self._etcd_port}"),
                *("--advertise-client-urls", f"{local}:{self._etcd_port}"),
                *("--listen-peer-urls", f"{local}:{self._peer_port}"),
                *("--initial-advertise-peer-urls", f"{local}:{self._peer_port}"),
                *("--initial-cluster", f"default={local}:{self._peer_port}"),
            ],
            self._home / "etcd.log",
        )
        until(lambda: _get(f"{local}:{self._etcd_port}/health"), "etcd answers", 20)
        for node in self.nodes:
            node.home.mkdir()
            self._tools.own(node.home)
            self.start_agent(node)
            until(lambda: any(m["role"] == "leader" for m in self.members()), "the cluster has a leader")
        self.until_whole()

    def start_agent(self, node: Node) -> None:
        """Start the agent of a node, and it its Postgres."""
        config = node.home / "patroni.json"
        config.write_text(json.dumps(self._settings(node), indent=2))  # JSON is YAML
        config.chmod(0o600)
        self._tools.own(config)
        command: list[str | Path] = [self._tools.python, "-m", "patroni", config]
        node.agent = self._tools.start(command, node.home / "patroni.log", PYTHONPATH=str(self._tools.patroni))

    def _settings(self, node: Node) -> dict[str, Any]:
        roles = {
            "superuser": {"username": "postgres", "password": self._password},
            "replication": {"username": "replicator", "password": self._password},
        }
        hba = ["local all all trust", "host replication replicator 127.0.0.1/32 scram-sha-256"]
        return {
            "scope": "failover",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}"},
            "etcd3": {"hosts": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": LOOP_WAIT,
                    "retry_timeout": RETRY_TIMEOUT,
                    "synchronous_mode": self._synchronous,
                    "maximum_lag_on_failover": 100 << 20,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "use_slots": True,
                        "parameters": {"max_connections": 100, "wal_log_hints": "on", "synchronous_commit": "on"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.home / "data"),
                "bin_dir": str(self._tools.postgres),
                "pgpass": str(node.home / "pgpass"),
                "authentication": roles,
                "pg_hba": [*hba, "host all all 127.0.0.1/32 scram-sha-256"],
                "parameters": {"unix_socket_directories": str(node.home)},
            },
        }

    def members(self) -> list[dict[str, Any]]:
        """What the agents say of each other."""
        for node in self.nodes:
            answer = _get(f"http://127.0.0.1:{node.api}/cluster")
            if answer is not None:
                members: list[dict[str, Any]] = answer["members"]
                return members
        return []

    def leader(self) -> tuple[Node, Node]:
        """The leader and the standby."""
        (name,) = [m["name"] for m in self.members() if m["role"] == "leader"]
        first, second = self.nodes
        return (first, second) if first.name == name else (second, first)

    def until_whole(self) -> None:
        """Wait until a standby streams that may become the leader."""
        wanted = "sync_standby" if self._synchronous else "replica"

        def whole() -> bool:
            roles = {(m["role"], m["state"]) for m in self.members()}
            return roles == {("leader", "running"), (wanted, "streaming")}

        until(whole, f"the cluster is whole again: {self.members()}", 120)

    def switch_over(self) -> None:
        """A planned change of the leader."""
        leader, standby = self.leader()
        asked = json.dumps({"leader": leader.name, "candidate": standby.name}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{leader.api}/switchover", asked)  # ours
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310
            pass

    def kill(self, node: Node) -> None:
        """SIGKILL for the agent and its Postgres."""
        postmaster = node.postmaster
        assert node.agent is not None
        node.agent.kill()
        if postmaster is not None:
            os.kill(postmaster, signal.SIGKILL)
        node.agent.wait()

    def freeze(self, pids: list[int]) -> None:
        _send(pids, signal.SIGSTOP)

    def thaw(self, pids: list[int]) -> None:
        _send(reversed(pids), signal.SIGCONT)

    def stop(self) -> None:
        """End all that was started."""
        for node in self.nodes:
            self.thaw(node.processes())
            postmaster = node.postmaster
            if node.agent is not None and node.agent.poll() is None:
                node.agent.kill()
                node.agent.wait()
            if postmaster is not None:
                _send([postmaster], signal.SIGQUIT)  # an immediate stop: nothing here is worth a checkpoint
                with contextlib.suppress(TimeoutError):
                    until(functools.partial(_gone, postmaster), "Postgres has ended", 20)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def running(tools: Tools, home: Path, *, synchronous: bool) -> Generator[Cluster]:
    """A cluster that runs; stopped in the end, however it ends."""
    cluster = Cluster(tools, home, synchronous=synchronous)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _send(pids: Any, number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # ours, on loopback
            return json.load(answer)
    except (OSError, ValueError):
        return None

"""Ask a server whether it accepts connections.

Speaks just enough of the protocol to distinguish a ready server from one that is starting or recovering, without a
driver and without a process per probe.
"""

from __future__ import annotations

import enum
import socket
import struct
from pathlib import Path

_PROTOCOL = 3 << 16
_PARAMETERS = b"user\0postgres\0database\0postgres\0application_name\0gen_durable probe\0\0"
_STARTUP = struct.pack("!ii", 8 + len(_PARAMETERS), _PROTOCOL) + _PARAMETERS
_TERMINATE = b"X\0\0\0\x04"
_CANNOT_CONNECT_NOW = b"C57P03\0"


class ServerState(enum.Enum):
    """The state of a server, as a client sees it."""

    READY = enum.auto()
    """It accepts connections (or rejects this one for another reason, such as too many of them)."""
    STARTING = enum.auto()
    """It is alive, but starting, recovering or stopping."""
    DOWN = enum.auto()
    """No process listens on the socket."""


def probe_server_state(path: Path) -> ServerState:
    """Connect to the socket once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
            connection.sendall(_STARTUP)
            reply = connection.recv(4096)
            if reply.startswith(b"R"):
                connection.sendall(_TERMINATE)
        except OSError:
            return ServerState.DOWN
    if not reply:
        return ServerState.DOWN
    return ServerState.STARTING if _CANNOT_CONNECT_NOW in reply else ServerState.READY

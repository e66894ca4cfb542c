"""Does the server answer?

In: the socket. Out: an `Answer`. Speaks just enough of the protocol to tell a server that takes connections from one
that is still starting or recovering, without a driver and without a process per question.
"""

from __future__ import annotations

import enum
import socket
import struct
from pathlib import Path

_PROTOCOL = 3 << 16
_PARAMETERS = b"user\0postgres\0database\0postgres\0application_name\0gen_durable probe\0\0"
_HELLO = struct.pack("!ii", 8 + len(_PARAMETERS), _PROTOCOL) + _PARAMETERS
_GOODBYE = b"X\0\0\0\x04"
_CANNOT_CONNECT_NOW = b"C57P03\0"


class Answer(enum.Enum):
    """What came back."""

    READY = enum.auto()
    """It takes connections (or refuses this one for a reason of its own, such as too many of them)."""
    STARTING = enum.auto()
    """It is alive, but starting, recovering or stopping."""
    SILENT = enum.auto()
    """Nobody listens."""


def ask(path: Path) -> Answer:
    """Knock at the socket once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(5)
        try:
            door.connect(str(path))
            door.sendall(_HELLO)
            reply = door.recv(4096)
            if reply.startswith(b"R"):
                door.sendall(_GOODBYE)
        except OSError:
            return Answer.SILENT
    if not reply:
        return Answer.SILENT
    return Answer.STARTING if _CANNOT_CONNECT_NOW in reply else Answer.READY

"""A receiver of webhooks on loopback, and names that resolve as a test says."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Receiver:
    """An HTTP server that answers as it is told, and remembers what it was sent."""

    answers: list[str]
    url: str = ""
    port: int = 0
    connections: int = 0
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    heads: list[list[str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        self.heads.append(head)
        raw = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(({name.lower(): value for name, value in raw.items()}, body))
        self.times.append(time.monotonic())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await self.over.wait()
        elif answer != "cut":
            status, *extra = answer.split("\n")
            lines = [f"HTTP/1.1 {status} X", "content-length: 0", "connection: close", *extra, "", ""]
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
        writer.close()


@asynccontextmanager
async def receiver(
    *answers: str, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    made = Receiver(list(answers))
    server = await asyncio.start_server(made.serve, address, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    made.url = f"http://{address}:{made.port}/hook?token=hidden"
    try:
        yield made
    finally:
        server.close()
        made.over.set()
        await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Certificate:
    """A certificate for one name, signed by itself: its file, and the TLS of a server that has it."""

    path: Path
    tls: ssl.SSLContext


def make_certificate(name: str, directory: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{name}.pem"
    encoding, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, unencrypted)
    path.write_bytes(private + made.public_bytes(encoding))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    return Certificate(path, tls)


class Names:
    """Names that resolve to addresses of a test, in place of the resolver. Each lookup takes the next answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[Sequence[str]]] = {}
        self.lookups: list[str] = []
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def set(self, name: str, *answers: Sequence[str]) -> None:
        """The addresses of a name: at its first lookup, at its second, ...; the last answer stays."""
        self.answers[name] = list(answers)

    def _look_up(self, host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host not in self.answers and not str(host).endswith(".test"):
            return self._real(host, port, *more, **options)
        self.lookups.append(host)
        answers = self.answers.get(host)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in addresses
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)

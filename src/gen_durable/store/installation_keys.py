"""The statement that reads the keys of an installation, which a migration has drawn once."""

from __future__ import annotations

from dataclasses import dataclass, field

from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement


@dataclass(frozen=True, slots=True)
class InstallationKeys:
    """What identifies an installation: the first part of idempotency keys, and the secret of handle tokens."""

    idempotency_prefix: str
    handle_token_key: bytes = field(repr=False)


def read_installation_keys(schema: Schema) -> Statement[InstallationKeys]:
    """The keys of the installation in a schema."""
    text = f'select idempotency_prefix, handle_token_key from "{schema.name}".installation'  # noqa: S608
    return Statement(text, (), lambda rows: InstallationKeys(str(rows[0][0]), bytes(rows[0][1])))

"""Tools for testing machines against a real Postgres."""

from __future__ import annotations

__all__: list[str] = []

"""Hosts that are dead, silent, read-only or frozen."""

from tests.support.hosts import dead, gated, other_server, silent, standby

__all__ = ["dead", "gated", "other_server", "silent", "standby"]

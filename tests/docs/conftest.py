"""Engines and harnesses for the pages whose statements are tested."""

from tests.support.engine import engine, private, private_dsn
from tests.support.harness import gen_durable_dsn, gen_durable_schema, throw_away_schemas

__all__ = ["engine", "gen_durable_dsn", "gen_durable_schema", "private", "private_dsn", "throw_away_schemas"]

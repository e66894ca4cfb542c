"""Harnesses on the server of all tests."""

from tests.support.harness import gen_durable_dsn, gen_durable_schema, throw_away_schemas

__all__ = ["gen_durable_dsn", "gen_durable_schema", "throw_away_schemas"]

"""Which database is meant, and that its password is never shown."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable.cli.database_opener import describe_dsn_without_password


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://me:sesame@db.example.com:6432/shop", "db.example.com:6432/shop"),
        ("postgresql://me:sesame@db/shop?sslmode=require", "db/shop"),
        ("postgresql://me:sesame@/shop?host=/run/postgresql", "/run/postgresql/shop"),
        ("postgresql://me:ses/ame@db/shop", "the database"),
        ("postgresql://me:sesame@one:1,two:2/shop", "one:1,two:2/shop"),
    ],
)
def test_a_dsn_is_shown_without_user_and_password(dsn: str, words: str) -> None:
    assert describe_dsn_without_password(dsn) == words


@pytest.mark.parametrize(
    ("command", "dsn"),
    [
        ("migrate", "postgresql://me:sesame@127.0.0.1:1/shop"),
        ("doctor", "postgresql://me:sesame@127.0.0.1:1/shop"),
        ("demo", "postgresql://me:sesame@127.0.0.1:1/shop"),
        ("migrate", "postgresql://me:sesame/x@127.0.0.1/shop"),
        ("migrate", "postgresql://me:sesame@no-such-host.invalid/shop"),
    ],
)
def test_an_unreachable_database_is_exit_code_2_in_one_line(run: Any, command: str, dsn: str) -> None:
    done = run(command, "--dsn", dsn)
    assert done.returncode == 2
    assert "cannot connect" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "sesame" not in done.stdout + done.stderr


def test_what_is_no_dsn_is_refused_without_repeating_it(run: Any) -> None:
    done = run("migrate", "--dsn", "mysql://me:sesame@db/shop")
    assert done.returncode == 2
    assert done.stderr.strip() == "gen-durable: The DSN must begin with postgresql://"


def test_database_url_is_used_where_no_dsn_is_given(run: Any, dsn: str, bare_schema: str) -> None:
    done = run("migrate", "--schema", bare_schema, DATABASE_URL=dsn)
    assert done.returncode == 0, done.stderr


def test_a_bad_schema_name_is_refused(run: Any, dsn: str) -> None:
    done = run("migrate", "--dsn", dsn, "--schema", "No; drop")
    assert done.returncode == 2
    assert "schema must be" in done.stderr

"""A DSN of several hosts is taken apart as libpq does it."""

from __future__ import annotations

import pytest

from gen_durable.pg.dsn import split_dsn_by_host

WRITING = "target_session_attrs=read-write"


@pytest.mark.parametrize(
    ("dsn", "each"),
    [
        ("postgresql://u:p@one:1/db?sslmode=require", ["postgresql://u:p@one:1/db?sslmode=require"]),
        ("postgresql:///db?host=/run/pg&port=5433", ["postgresql:///db?host=/run/pg&port=5433"]),
        ("postgresql://u:p@one:1,two:2/db", [f"postgresql://u:p@one:1/db?{WRITING}", f"postgresql://u:p@two:2/db?{WRITING}"]),
        ("postgresql://[::1]:1,two/db", [f"postgresql://[::1]:1/db?{WRITING}", f"postgresql://two/db?{WRITING}"]),
        (
            "postgresql:///db?host=one,two&port=1,2",
            [f"postgresql:///db?{WRITING}&host=one&port=1", f"postgresql:///db?{WRITING}&host=two&port=2"],
        ),
        (
            "postgresql:///db?host=one,two&port=7",
            [f"postgresql:///db?{WRITING}&host=one&port=7", f"postgresql:///db?{WRITING}&host=two&port=7"],
        ),
        (
            "postgresql://one,two/db?target_session_attrs=any",
            ["postgresql://one/db?target_session_attrs=any", "postgresql://two/db?target_session_attrs=any"],
        ),
        ("postgresql://one/db?password=", ["postgresql://one/db?password="]),
        ("postgresql://u:a%40b%2Cc@one/db", ["postgresql://u:a%40b%2Cc@one/db"]),
    ],
)  # fmt: skip
def test_each_host_has_a_dsn(dsn: str, each: list[str]) -> None:
    """In the order given; of several one is wanted that can be written to, unless the DSN says otherwise."""
    assert [host.dsn for host in split_dsn_by_host(dsn).hosts] == each


@pytest.mark.parametrize(("said", "seconds"), [("2", 2.0), ("0.5", 0.5), ("0", None), ("soon", None)])
def test_connect_timeout_is_read(said: str, seconds: float | None) -> None:
    """libpq's word for it; it is not passed on, for the server would refuse it."""
    hosts = split_dsn_by_host(f"postgresql://one/db?connect_timeout={said}&sslmode=disable")
    assert hosts.timeout == seconds
    assert hosts.hosts[0].dsn == "postgresql://one/db?sslmode=disable"


def test_no_password_is_shown() -> None:
    hosts = split_dsn_by_host("postgresql://u:hush@one,two/db")
    assert "hush" not in repr(hosts)
    assert [host.name for host in hosts.hosts] == ["one", "two"]


def test_a_password_beside_settings_of_the_server() -> None:
    """An option that is not known may be a piece of a password, so no host is named; the DSN is read all the same."""
    found = split_dsn_by_host("postgresql:///db?host=one,two&password=hush&work_mem=4MB&connect_timeout=3")
    assert [host.name for host in found.hosts] == ["host 1", "host 2"]
    assert [host.dsn for host in found.hosts] == [
        f"postgresql:///db?{WRITING}&host={name}&password=hush&work_mem=4MB" for name in ("one", "two")
    ]
    assert found.timeout == 3


@pytest.mark.parametrize("password", ["hu,sh/x", "hu,sh?x", "hu,sh#x", "12,3/x"])
def test_a_password_that_is_not_encoded(password: str) -> None:
    """Its pieces are not taken for hosts, which are named in messages."""
    (host,) = split_dsn_by_host(f"postgresql://me:{password}@one/db").hosts
    assert host.name == "the host"

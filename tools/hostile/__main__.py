"""`python -m tools.hostile`: run hostile logins of every role beside a normal load, and account for it."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from urllib.parse import urlsplit, urlunsplit

from gen_durable import Durable
from tools.bench.server import serve
from tools.hostile.grants import restrict_partition_keys
from tools.hostile.run import FACTOR, Figures, Run, describe

LOGINS = {"load": "client", "worker": "worker", "producer": "producer", "client": "client", "reader": "reader"} | {
    "viewer": "viewer",
    "stranger": "",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the load runs, half of it attacked (5)")
    parser.add_argument("--phases", type=int, default=5, help="how often the attack begins and ends (5)")
    parser.add_argument("--seed", type=int, help="of the attacks; printed, so that a run can be repeated")
    parser.add_argument("--factor", type=float, default=FACTOR, help=f"how much slower the load may be ({FACTOR:g})")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave out this attack")
    return parser.parse_args()


def say(words: str) -> None:
    print(words, flush=True)


async def run(given: argparse.Namespace, seed: int) -> Figures:
    schema = f"hostile_{secrets.token_hex(4)}"
    password = secrets.token_hex(8)
    async with serve() as server:
        async with Durable(server.dsn, schema=schema, migrate=True, roles=schema):
            pass
        parts = urlsplit(server.dsn)
        place = parts.netloc.rsplit("@", 1)[-1]
        dsns: dict[str, str] = {}
        for name, role in LOGINS.items():
            login = f"{schema}_l_{name}"
            await server.admin.execute(f"create role {login} login password '{password}'")
            if role:
                await server.admin.execute(f"grant {schema}_{role} to {login}")
            dsns[name] = urlunsplit(parts._replace(netloc=f"{login}:{password}@{place}"))
        await restrict_partition_keys(server.dsn, schema, dsns)
        return await Run(schema, dsns | {"owner": server.dsn}).go(
            given.minutes * 60, given.phases, seed, tuple(given.without)
        )


def main() -> int:
    given = arguments()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    say(f"seed {seed}; repeat with: make hostile MINUTES={given.minutes:g} SEED={seed}")
    figures = asyncio.run(run(given, seed))
    say(describe(figures))
    problems = figures.verdict(given.factor)
    for problem in problems[:20]:
        say(f"BAD: {problem}")
    say(f"{len(problems)} problems." if problems else "Nothing of others was read, changed or stopped.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

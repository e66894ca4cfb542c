"""Compare this version with an earlier one in pairs: processes of both take turns on one server.

Absolute times vary from minute to minute on a shared machine. Two runs beside each other vary together, so the figure
is the median of the ratios of neighbours: above 1 this version is faster. The processor time of the process is compared
too, which other work on the machine changes less: below 1 this version needs less of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.bench.server import Server, serve

ROOT = Path(__file__).parents[2]
AMOUNTS = {"drain": 5_000, "chain": 1_500, "threads": 3_000, "latency": 60, "inserts": 10_000, "singles": 200}
PASSWORD = "of-a-benchmark"  # noqa: S105  # of a login on a server that the run deletes
MIGRATE = """
import asyncio, os, sys
from gen_durable import Durable

async def main():
    async with Durable(os.environ["BENCH_DSN"], schema=sys.argv[1], migrate=True, roles=sys.argv[2] or None):
        pass

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """The seconds of a turn, and the processor time of its process."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Side:
    """A process with one version of the library, on a schema of its own."""

    process: asyncio.subprocess.Process

    async def take_turn(self) -> Turn:
        """Run the scenario once."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(b"go\n")
        seconds, cpu = (await stdout.readline()).split()
        return Turn(float(seconds), float(cpu))


async def start_side(server: Server, source: Path, schema: str, scenario: str, *, with_roles: bool) -> Side:
    """Migrate a schema with one version of the library, and start its process."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "BENCH_DSN": server.dsn}
    prefix = schema if with_roles else ""
    migration = await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, schema, prefix, env=environment)
    if await migration.wait():
        raise SystemExit(f"the migration of {source} failed")
    if with_roles:
        login = f"{schema}_login"
        await server.admin.execute(f"create role {login} login password '{PASSWORD}' in role {schema}_worker")
        environment["BENCH_DSN"] = server.dsn.replace("//postgres", f"//{login}:{PASSWORD}", 1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.pair_program", schema, scenario, str(AMOUNTS[scenario])),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    if (await process.stdout.readline()).strip() != b"ready":
        raise SystemExit(f"the process of {source} did not start")
    return Side(process)


async def compare(
    server: Server, before: Path, scenario: str, turns: int, *, with_roles: bool
) -> list[tuple[Turn, Turn]]:
    """The turns of neighbours: before, now."""
    kind = f"{scenario}{'_roles' if with_roles else ''}"
    pairs: list[tuple[Turn, Turn]] = []
    async with AsyncExitStack() as stack:
        sides: list[Side] = []
        for name, source in (("before", before), ("now", ROOT / "src")):
            side = await start_side(server, source, f"{kind}_{name}", scenario, with_roles=with_roles)
            stack.callback(side.process.kill)
            sides.append(side)
        for side in sides:  # plans and caches
            await side.take_turn()
        for number in range(turns):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            taken = {index: await sides[index].take_turn() for index in order}
            pairs.append((taken[0], taken[1]))
            print(f"\r{kind} {number + 1}/{turns}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return pairs


async def run(options: argparse.Namespace) -> None:
    directory = Path(tempfile.mkdtemp(prefix="gd-pairs-"))
    git = ("git", "-C", str(ROOT), "worktree")
    await asyncio.to_thread(
        subprocess.run, [*git, "add", "-q", "--detach", str(directory / "before"), options.base], check=True
    )
    try:
        async with serve() as server:
            print(
                f"{'scenario':24} {'ratio':>6}  {'quartiles':15} turns   (above 1: faster than {options.base})"
                "   CPU of the process, now / before; least of each"
            )
            for with_roles in (False, True) if options.roles else (False,):
                for scenario in options.scenario or AMOUNTS:
                    found = await compare(
                        server, directory / "before" / "src", scenario, options.turns, with_roles=with_roles
                    )
                    low, middle, high = statistics.quantiles((b.seconds / n.seconds for b, n in found), n=4)
                    cpu = statistics.median(n.cpu / b.cpu for b, n in found)
                    per = 1e6 / AMOUNTS[scenario]
                    least = [min(turn.cpu for turn in turns) * per for turns in zip(*found, strict=True)]
                    name = f"{scenario}{', with roles' if with_roles else ''}"
                    print(
                        f"{name:24} {middle:6.3f}  {low:.3f} to {high:.3f}  {len(found):5}   {cpu:.3f}; "
                        f"{least[1]:.1f} / {least[0]:.1f} µs",
                        flush=True,
                    )
    finally:
        await asyncio.to_thread(subprocess.run, [*git, "remove", "--force", str(directory / "before")], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.pairs", description=__doc__)
    parser.add_argument("base", help="the revision to compare with, such as HEAD~20")
    parser.add_argument("--scenario", action="append", choices=AMOUNTS, help="only this one; may be given again")
    parser.add_argument("--turns", type=int, default=20, help="pairs per scenario (%(default)s)")
    parser.add_argument("--roles", action="store_true", help="measure again as a login with the role worker")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""The catalogue of mutants fits the SQL: `make mutants` can run, and no guard is without a mutant or an excuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_guard_has_a_mutant_or_an_excuse() -> None:
    """Every text occurs once, every test exists, and every lock, order, fence and constraint is named."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutants", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_guard_is_missed(tmp_path: Path) -> None:
    """A lock that nobody has put into the catalogue is found."""
    code = """
import sys
from pathlib import Path
from tools.mutants import catalogue_reader as mutant
file = Path(sys.argv[1])
mutant.SQL = Path("src/gen_durable/sql")
sql = (mutant.ROOT / mutant.SQL / "functions" / "flush.sql").read_text()
(file / mutant.SQL / "functions").mkdir(parents=True)
(file / mutant.SQL / "functions" / "flush.sql").write_text(
    sql.replace("if parked_places is", "perform from t for update skip locked; if parked_places is")
    .replace("order by i.id for no key update;", "order by i.id for share;")
)
found = mutant.load()
mutant.ROOT = file
for problem in mutant.problems(found):
    print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "no mutant and no excuse for this row lock: perform from t for update skip locked;" in done.stdout, (
        done.stderr
    )
    assert "no mutant and no excuse for this skip locked" in done.stdout
    assert "flush/3: this occurs 0 times in flush.sql" in done.stdout

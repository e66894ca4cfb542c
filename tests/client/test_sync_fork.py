"""SyncDurable and fork: a server that loads the application once and forks its workers (gunicorn --preload)."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from gen_durable import Signal, SyncDurable, job

hello = Signal("hello", int)

@job
def greet(name: str) -> str: ...

app = SyncDurable(sys.argv[1], schema=sys.argv[2])
app.open()
handle = app.insert(greet, "parent")
token = handle.token
assert app.get(handle).status.value == "runnable"

def child(n):
    if n == 0:  # the first call of the child
        assert app.handle_of_token(token, greet).id == handle.id
    if n == 1:
        assert handle.token == token
    if n < 2:
        own = app.insert(greet, f"child {n}")
        assert app.get(own).state == f"child {n}"
        assert app.get(handle).state == "parent"
        app.signal(handle, hello, n)
    app.close()

for n in range(3):
    if (pid := os.fork()) == 0:
        try:
            child(n)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print("child", n, os.waitstatus_to_exitcode(status), flush=True)
assert app.get(handle).status.value == "runnable"
app.insert(greet, "parent again")
app.close()
print("parent closed", flush=True)
"""


def test_a_forked_process_opens_its_own_connections(dsn: str, schema: str) -> None:
    """Children use and close the client that their parent opened; the parent's connections are left alone."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, dsn, schema], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["child 0 0", "child 1 0", "child 2 0", "parent closed"], done


IN_TRANSACTION = """
import os, sys
import psycopg
from gen_durable import SyncDurable, job

@job
def greet(name: str) -> str: ...

dsn, schema = sys.argv[1:]
app = SyncDurable(dsn, schema=schema)
app.open()
if os.fork() == 0:
    with psycopg.connect(dsn, autocommit=True) as ear, psycopg.connect(dsn) as caller:
        ear.execute(f"listen {schema}_wake")
        app.insert(greet, "child", connection=caller)
        caller.commit()
        (message,) = ear.notifies(timeout=10, stop_after=1)
        print(message.payload, flush=True)
    app.close()
    os._exit(0)
os.wait()
app.close()
"""


def test_a_forked_process_notifies_of_its_transactions(dsn: str, schema: str) -> None:
    """By connections of its own, although its only call is one on the caller's connection."""
    done = subprocess.run(
        [sys.executable, "-c", IN_TRANSACTION, dsn, schema], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["queue:default"], done

"""The role matrix: every function of the schema, each role, own rows and rows of others.

Two tables: `MAY_CALL` has the roles that may call each function; a function without an entry fails the test. `PROBES`
has calls that a login aims at its own rows, at rows of another login and at rows that do not exist, and what each role
achieves by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from tests.support.role_world import OTHERS, OWN, World, effect, pooled
from tests.support.roles import GROUPS, logins

# p producer, c client, r reader, v viewer, w worker, a admin; - is a helper that only other functions call.
ROLES = {"p": "producer", "c": "client", "r": "reader", "v": "viewer", "w": "worker", "a": "admin"}
MAY_CALL = {
    "acquire_step_limit": "w",
    "activities_of": "rvwa",
    "activities_page": "w",
    "admit_or_block_rows_by_limit": "-",
    "admit_or_block_rows_by_partition": "-",
    "allocate_ids": "pcwa",
    "cancel": "pcwa",
    "cancel_requests_of": "w",
    "cancel_skipping_refused_rows": "-",
    "cancel_listed_descendants": "pcwa",
    "lock_row_for_journal": "-",
    "checkpoint_of": "rvwa",
    "children_of_claim": "-",
    "children_page": "w",
    "clear_checkpoint": "w",
    "count": "rvwa",
    "count_due_unknown_steps": "w",
    "count_taken_slots": "rvwa",
    "gate_of_crashed_row": "-",
    "crash_loop_error": "-",
    "debounce": "pcwa",
    "declare_retentions": "w",
    "declared_retentions": "w",
    "delete_full_rate_buckets": "w",
    "delete_instance": "a",
    "delete_journal_trg": "-",
    "delete_signals": "a",
    "delete_tickets_of_dead_claims": "w",
    "delete_signals_trg": "-",
    "discard_allocated_id": "-",
    "draw_unused_ids": "-",
    "end_or_request_cancel": "-",
    "ends_of": "pcrwa",
    "filter_sql": "-",
    "first_row_of_next_priority": "-",
    "flush": "w",
    "gate_row_id": "-",
    "gate_name": "-",
    "gc": "w",
    "gc_unused_ids": "w",
    "gc_rows_with_own_retention": "w",
    "get": "pcrvwa",
    "has_metadata_index": "-",
    "heartbeat": "w",
    "history_of": "rvwa",
    "id_bound_before_time": "-",
    "id_of_key": "pcrwa",
    "ids_of_own_instances": "-",
    "inbox_of_claim": "-",
    "inbox_page": "w",
    "gates_blocking_new_rows": "-",
    "insert": "pcwa",
    "insert_if_key_free": "-",
    "insert_instances_of_outcomes": "w",
    "instances_of": "rvwa",
    "is_permanent_error": "-",
    "journal_of_claim": "-",
    "keep_ends_at": "-",
    "key_of_gate": "-",
    "keys_of_limits": "-",
    "limit_states": "rvwa",
    "list": "rvwa",
    "live_id_of_key": "pcwa",
    "lock_fair_rows": "-",
    "reblock_rows_and_lock_limit_gates": "-",
    "lock_more_rows_to_block": "-",
    "lock_parent_and_allocate_ids": "w",
    "may_change_instances_of_others": "cwa",
    "may_read_column": "-",
    "notify_workers": "pcwa",
    "payloads_page": "a",
    "pick": "w",
    "progress_of": "pcrvwa",
    "qualified_step_name": "-",
    "queues_of_blocked_rows": "-",
    "readmit_signals_and_wake": "-",
    "reap": "w",
    "reapply_limit": "-",
    "record_activity": "w",
    "record_checkpoint": "w",
    "record_progress": "w",
    "record_transitions": "-",
    "append_to_history": "-",
    "cause_of_claim": "-",
    "keeps_history": "-",
    "transitions_of": "-",
    "reject_signals_and_release_claims": "w",
    "rejected_signals": "rvwa",
    "release_claims": "w",
    "release_step_limit": "w",
    "remove_limit": "a",
    "replace_payloads": "a",
    "require_granted": "-",
    "require_read_committed": "-",
    "require_max_elements": "-",
    "require_valid_signals": "-",
    "require_valid_starts": "-",
    "restore_signals": "a",
    "retry": "a",
    "retry_signals_others_rejected": "w",
    "claimable_rows": "-",
    "rows_up_to_size": "-",
    "send_first_signals": "-",
    "session_login": "-",
    "set_limit": "wa",
    "signal": "pcwa",
    "signal_or_start": "pcwa",
    "signals_of": "rvwa",
    "use_up_allocated_ids": "-",
    "take_login_quota": "-",
    "trim_history": "w",
    "unblock": "-",
    "unblock_crashed_rows": "-",
    "unblock_missed_rows": "w",
    "unblock_partition_rows": "-",
    "unblock_rate_rows": "-",
    "unblock_slot_rows": "-",
    "unique_scope_for_status": "-",
    "unlocked_ids": "w",
    "wake_if_signal_came": "-",
    "count_ended_children_and_wake_parents": "-",
}

# Name of the probe, which begins with its function: what producer, client, reader, viewer and the last two, worker and
# admin, achieve, as OWN/OTHERS. x: 42501; p: sees payloads; m: sees names, keys or metadata; e: tells the rows from
# absent ones; c: changes them; w: waits for a lock on them; -: none of these. `|` separates answers that are all good.
KEY = "convert_to('key-{base}', 'UTF8')"
ROW = "array['m'], array[1], array['s'], array['1']::jsonb[], array['q'], '{}', '{}', '{}', '{}'"
SIGNAL = "array['go'], array['1']::jsonb[], array[null]::text[]"
START = """'{"fsm": "m", "step": "s", "delay": 9}'"""
PROBES = {  # {base} is the first id of an owner; {key}, {row}, {signal} and {start} are the texts above
    "insert, key": (
        "e/e e/e x x e/e",
        "select inserted, id >= 71000000 from @.insert({row}, array[{key}], array['{runnable}'], 'existing')",
    ),
    "insert, key, raise": (
        "e/e e/e x x e/e",
        "select 1 from @.insert({row}, array[{key}], array['{runnable}'])",
    ),
    "insert, id": (
        "e|-/e|- e|-/e|- x x e|-/e|-",
        "select 1 from @.insert({row}, '{}', '{}', allocated_ids => array[{base} + 1])",
    ),
    "insert one": (
        "e/e e/e x x e/e",
        "select @.insert('m', 's', unique_key => 'key-{base}', on_conflict => 'skip') is null",
    ),
    "allocate_ids": (
        "-/- -/- x x -/-",
        "select 1 from @.allocate_ids(2)",
    ),
    "id_of_key": (
        "e/- e/- e/e x e/e",
        "select @.id_of_key({key})",
    ),
    "id_of_key, ended": (
        "e/- e/- e/e x e/e",
        "select @.id_of_key('ended-{base}'::bytea)",
    ),
    "live_id_of_key": (
        "e/- e/e x x e/e",
        "select @.live_id_of_key({key})",
    ),
    "signal, id": (
        "mecw/- mecw/mecw x x mecw/mecw",
        "select * from @.signal(array[{base} + 1], array[null]::bytea[], {signal})",
    ),
    "signal, key": (
        "mecw/- mecw/mecw x x mecw/mecw",
        "select * from @.signal(array[null]::bigint[], array[{key}], {signal})",
    ),
    "signal one, id": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select @.signal({base} + 1, 'go')",
    ),
    "signal one, key": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select @.signal('key-{base}', 'go')",
    ),
    "signal, dedup": (
        "ew/- ew/ew x x ew/ew",
        "select @.signal({base} + 1, 'go', dedup_key => 'dedup-{base}')",
    ),
    "signal_or_start": (
        "ecw/e ecw/ecw x x ecw/ecw",
        "select verdict from @.signal_or_start({key}, 'go', '1', null, {start}, null)",
    ),
    "signal_or_start, dedup": (
        "e/- e/e x x e/e",
        "select verdict from @.signal_or_start('ended-{base}'::bytea, 'go', '1', 'ended-{base}', {start}, null)",
    ),
    "signal_or_start, id": (
        "e|-/e|- e|-/e|- x x e|-/e|-",
        "select verdict from @.signal_or_start('new'::bytea, 'go', '1', null, {start} || "
        "jsonb_build_object('id', {base} + 1), null)",
    ),
    "signal_or_start one": (
        "ecw/e ecw/ecw x x ecw/ecw",
        "select @.signal_or_start('key-{base}', 'go', '1', {start})",
    ),
    "debounce": (
        "ecw/e ecw/ecw x x ecw/ecw",
        "select verdict from @.debounce('debounced-{base}'::bytea, {start}, null, null, null)",
    ),
    "debounce one": (
        "cw/e cw/cw x x cw/cw",
        "select 1 from @.debounce('debounced-{base}', {start})",
    ),
    "cancel, id": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select * from @.cancel(array[{base} + 1], array[null]::bytea[], 'r', true)",
    ),
    "cancel, running": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select * from @.cancel(array[{base} + 4], array[null]::bytea[], 'r', true, true)",
    ),
    "cancel, key": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select * from @.cancel(array[null]::bigint[], array[{key}], 'r', true)",
    ),
    "cancel one, id": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select @.cancel({base} + 1, 'r')",
    ),
    "cancel one, key": (
        "ecw/- ecw/ecw x x ecw/ecw",
        "select @.cancel('key-{base}', 'r')",
    ),
    "cancel_listed_descendants": (
        "ec/- ec/ec x x ec/ec",
        "select * from @.cancel_listed_descendants(10, {base} + 5)",
    ),
    "cancel_listed_descendants, any": (
        "-/- c/c x x c/c",
        "select * from @.cancel_listed_descendants(10)",
    ),
    "ends_of": (
        "pe/- pe/- pe/pe x pe/pe",
        "select * from @.ends_of(array[{base} + 2])",
    ),
    "get, id": (
        "pme/- pme/- pme/pme pme/me pme/pme",
        "select * from @.get({base} + 1)",
    ),
    "get, ended": (
        "pme/- pme/- pme/pme pme/me pme/pme",
        "select * from @.get({base} + 2)",
    ),
    "get, key": (
        "pme/- pme/- pme/pme pme/me pme/pme",
        "select * from @.get(null, {key})",
    ),
    "progress_of": (
        "pe/- pe/- pe/pe pe/- pe/pe",
        "select * from @.progress_of({base} + 1)",
    ),
    "progress_of, key": (
        "pe/- pe/- pe/pe pe/- pe/pe",
        "select * from @.progress_of(null, {key})",
    ),
    "notify_workers": (
        "-/- -/- x x -/-",
        "select @.notify_workers('cancel_children', array['{base}'])",
    ),
    "instances_of": (
        "x x pme/pme pme/me pme/pme",
        "select * from @.instances_of(array[{base} + 1, {base} + 2], true)",
    ),
    "list": (
        "x x e/e e/e e/e",
        "select * from @.list('{}', {base} + 3, 1)",
    ),
    "list, key": (
        "x x e/e e/e e/e",
        "select * from @.list(jsonb_build_object('unique_key', encode({key}, 'hex')), null, 10)",
    ),
    "list, error": (
        "x x e/e x e/e",
        "select * from @.list(jsonb_build_object('error', 'CANARY'), {base} + 3, 1)",
    ),
    "count": (
        "x x e/e e/e e/e",
        "select * from @.count(jsonb_build_object('unique_key', encode({key}, 'hex')), 10)",
    ),
    "count, error": (
        "x x -/- x -/-",
        'select * from @.count(\'{"error": "CANARY"}\', 10)',
    ),
    "history_of": (
        "x x pe/pe e/e pe/pe",
        "select * from @.history_of({base} + 1)",
    ),
    "activities_of": (
        "x x pme/pme me/me pme/pme",
        "select * from @.activities_of({base} + 1)",
    ),
    "checkpoint_of": (
        "x x pe/pe e/e pe/pe",
        "select * from @.checkpoint_of({base} + 1)",
    ),
    "signals_of": (
        "x x pe/pe pe/e pe/pe",
        "select * from @.signals_of({base} + 1, payloads => true)",
    ),
    "rejected_signals": (
        "x x pe/pe pe/e pe/pe",
        "select * from @.rejected_signals({base}, 0, 1, true)",
    ),
    "limit_states": (
        "x x -/- -/- -/-",
        "select * from @.limit_states()",
    ),
    "count_taken_slots": (
        "x x -/- -/- -/-",
        "select @.count_taken_slots('x', 9)",
    ),
}


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found, pooled(found) as through:
        yield through


FUNCTIONS = """
select p.proname, p.oid::regprocedure::text, array(
  select format('null::%s', format_type(t, null)) from unnest(p.proargtypes) as t
) from pg_proc p where p.pronamespace = $1::text::regnamespace order by 1, 2
"""


def is_allowed(connection: psycopg.Connection[object], statement: str) -> bool:
    """Whether a statement is allowed: anything but 42501. What it does is rolled back."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("set local statement_timeout = '2s'")
            connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error:
        return True  # its arguments are no good, but it ran
    return True


def test_every_role_and_every_function(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Each overload of each function is called by each role and by a login without one: it runs, or raises 42501."""
    with psycopg.connect(dsn) as owner:
        functions = psycopg.RawCursor(owner).execute(FUNCTIONS, [f'"{schema}"']).fetchall()
    assert {name for name, _, _ in functions} == set(MAY_CALL), "MAY_CALL says which roles may call a function"
    wrong: list[str] = []
    for login in (*ROLES.values(), "stranger"):
        with psycopg.connect(dsns[login], prepare_threshold=None) as connection:
            for name, signature, nulls in functions:
                may = login in {ROLES.get(letter) for letter in MAY_CALL[name]}
                if is_allowed(connection, f'select "{schema}".{name}({", ".join(nulls)})') is not may:
                    wrong.append(f"{login}: {signature} should be {'allowed' if may else 'refused'}")
    assert wrong == []


def test_every_function_of_a_limited_role_is_probed() -> None:
    """What a producer, client, reader or viewer may call is shown by its effect."""
    limited = {name for name, roles in MAY_CALL.items() if set(roles) & set("pcrv")}
    probed = {name.replace(",", " ").split()[0] for name in PROBES}
    assert limited - probed == {"may_change_instances_of_others"}
    assert probed <= limited


def call(world: World, probe: str) -> str:
    for name, text in {"row": ROW, "key": KEY, "signal": SIGNAL, "start": START}.items():
        probe = probe.replace(f"{{{name}}}", text)
    return world.sql(probe)


def test_own_rows_and_rows_of_others(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """What others have started is read, changed, locked and revealed as far as PROBES says, and no further."""
    world = World(dsn, schema)
    other = world.oid(f"{schema}_l_client2")
    wrong: list[str] = []
    for place, role in enumerate(("producer", "client", "reader", "viewer", "worker", "admin")):
        ids = (world.oid(f"{schema}_l_{role}"), other)
        with psycopg.connect(dsns[role], autocommit=True, prepare_threshold=None) as connection:
            for name, (expected, statement) in PROBES.items():
                columns = expected.split()
                wanted = columns[min(place, len(columns) - 1)]
                on_own, on_others = wanted.split("/") if "/" in wanted else (wanted, wanted)
                for base, good in ((OWN, on_own), (OTHERS, on_others)):
                    if (found := effect(world, connection, call(world, statement), base, ids)) not in good.split("|"):
                        wrong.append(f"{role}: {name} on {'own' if base == OWN else 'others'}: {found}, not {good}")
    world.empty()
    world.close()
    assert wrong == []


def test_a_login_without_a_role_reaches_nothing(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Not even by a probe: CONNECT to the database is all it has."""
    world = World(dsn, schema)
    ids = (world.oid(f"{schema}_l_stranger"), world.oid(f"{schema}_l_client2"))
    with psycopg.connect(dsns["stranger"], autocommit=True, prepare_threshold=None) as connection:
        found = {effect(world, connection, call(world, statement), OTHERS, ids) for _, statement in PROBES.values()}
    world.empty()
    world.close()
    assert found == {"x"}


# A member of a role can name it as its own. None of this may change what other members have.
AS_A_MEMBER = (
    "drop owned by {role}",
    "reassign owned by {role} to {login}",
    "alter role {role} rename to {role}_x",
    "alter role {role} set search_path = public",
    "alter role {role} login",
    "comment on role {role} is 'mine'",
    "grant {role} to {prefix}_l_stranger",
    "grant execute on all functions in schema @ to {prefix}_l_stranger",
    "revoke execute on all functions in schema @ from {role}",
    "revoke usage on schema @ from {role}",
    "alter default privileges for role {role} grant all on tables to public",
    "drop role {role}",
    "set role {prefix}_owner",
    "set session authorization {prefix}_owner",
    "grant {prefix}_owner to {login}",
)


@pytest.mark.direct("statements about roles, not about rows")
def test_a_member_cannot_change_its_role(dsn: str, schema: str) -> None:
    """`drop owned by` is allowed to every member of a role, and must not take its rights from the others."""
    rights = (
        "select md5(string_agg(part, ' ' order by part)) from ("
        "select proacl::text as part from pg_proc where pronamespace = %(s)s::text::regnamespace "
        "union all select relacl::text from pg_class where relnamespace = %(s)s::text::regnamespace "
        "union all select attacl::text from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relnamespace = %(s)s::text::regnamespace "
        "union all select nspacl::text || nspowner from pg_namespace where nspname = %(s)s::text "
        "union all select rolname || rolcanlogin from pg_roles where starts_with(rolname, %(s)s::text || '_') "
        "union all select roleid::regrole::text || member::regrole from pg_auth_members "
        "where starts_with(roleid::regrole::text, %(s)s::text || '_')) as parts"
    )
    with logins(dsn, schema) as dsns, psycopg.connect(dsn, autocommit=True) as admin:
        before = admin.execute(rights, {"s": schema}).fetchone()
        for role in GROUPS[1:]:
            names = {"role": f"{schema}_{role}", "login": f"{schema}_l_{role}", "prefix": schema}
            with psycopg.connect(dsns[role], autocommit=True) as connection:
                for statement in AS_A_MEMBER:
                    with suppress(psycopg.Error):
                        connection.execute(statement.format(**names).replace("@", f'"{schema}"').encode())
                    assert admin.execute(rights, {"s": schema}).fetchone() == before, (role, statement)

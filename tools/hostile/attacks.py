"""What a hostile login sends, one SQL statement per attack, with every right of its role."""

from __future__ import annotations

import random
from dataclasses import dataclass

CANARY = "hostile-canary"
"""In every payload of the normal load, and nowhere else."""
ROLES = ("producer", "client", "reader", "viewer", "stranger")
HELD = 20  # instances of the load that wait to the end, under keys that the attackers know
LONGEST_HOLD = 0.3  # seconds that a transaction of an attack stays open


@dataclass(frozen=True, slots=True)
class Attack:
    """One statement. `{id}` is a random id, `{n}` a random number, `{key}` a key of the normal load.

    `held`: it stays in an open transaction for a moment. `others`: for a client it is a right to change instances of
    others, so only the other roles send it.
    """

    name: str
    statement: str
    held: bool = False
    others: bool = False


_ROW = "array['Junk'], array[1], array['s'], array['{n}']::jsonb[], array['junk'], '{}', '{}', '{}', '{}'"
ATTACKS = (
    Attack("insert", "select @.insert('Junk', 's', '{n}', queue => 'junk')"),
    Attack("insert into the queue of others", "select @.insert('Junk', 's', '{n}', delay => '1 hour')"),
    Attack("insert, many", "select count(*) from generate_series(1, 200) as n, @.insert('Junk', 's', queue => 'junk')"),
    Attack("insert, key of others", "select @.insert('Junk', 's', queue => 'junk', unique_key => '{key}')"),
    Attack(
        "insert, partition of others", "select @.insert('Junk', 's', queue => 'junk', partition_key => 'p' || {n} % 50)"
    ),
    Attack("insert, huge", "select @.insert('Junk', 's', to_jsonb(repeat('x', 2000000)), queue => 'junk')"),
    Attack("insert, deep", "select @.insert('Junk', 's', (repeat('[', 3000) || repeat(']', 3000))::jsonb)"),
    Attack("insert, id of others", f"select * from @.insert({_ROW}, '{{}}', '{{}}', allocated_ids => array[{{id}}])"),
    Attack(
        "insert, wrong arrays",
        "select * from @.insert(array['a','b'], array[1], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    ),
    Attack("insert, held", "select @.insert('Junk', 's', queue => 'junk', unique_key => 'junk{n}')", held=True),
    Attack("allocate_ids", "select cardinality(@.allocate_ids(1000))"),
    Attack("signal", "select @.signal({id}, 'go', '{n}')", others=True),
    Attack("signal, key", "select @.signal('{key}', 'go', '{n}')", others=True),
    Attack(
        "signal, many",
        "select * from @.signal(array(select generate_series({id}, {id} + 500)::bigint), '{}', "
        "array_fill('go'::text, array[501]), '{}', '{}')",
        others=True,
    ),
    Attack("cancel", "select @.cancel({id}, 'hostile')", others=True),
    Attack("cancel, held", "select @.cancel({id}, 'hostile')", held=True, others=True),
    Attack("cancel, key", "select @.cancel('{key}', 'hostile')", others=True),
    Attack(
        "cancel, many",
        "select * from @.cancel(array(select generate_series({id}, {id} + 5000)::bigint), '{}', 'hostile', true)",
        others=True,
    ),
    Attack("cascade", "select * from @.cancel_listed_descendants(10000)"),
    Attack("debounce", 'select @.debounce(\'{key}\', \'{"fsm": "Junk", "step": "s", "delay": 60}\')', others=True),
    Attack(
        "signal_or_start",
        'select @.signal_or_start(\'{key}\', \'go\', \'1\', \'{"fsm": "Junk", "step": "s", "queue": "junk"}\')',
        others=True,
    ),
    Attack("get", "select * from @.get({id})"),
    Attack("get, key", "select * from @.get(null, convert_to('{key}', 'UTF8'))"),
    Attack("ends_of", "select * from @.ends_of(array(select generate_series({id}, {id} + 5000)::bigint))"),
    Attack("list", "select * from @.list('{}', null, 1000, 1000000)"),
    Attack("count", 'select * from @.count(\'{"step": "no"}\', 100000, 1000000)'),
    Attack(
        "instances_of", "select * from @.instances_of(array(select generate_series({id}, {id} + 1000)::bigint), true)"
    ),
    Attack("signals_of", "select * from @.signals_of({id}, payloads => true)"),
    Attack("read a table", "select * from @.instances limit 100"),
    Attack("read a view", "select error, message from @.step_status limit 10"),
    Attack("write a table", "update @.instances set priority = 0"),
    Attack("notify", "select @.notify_workers('cancel_children', array(select generate_series(1, 100)::text))"),
    Attack("notify, bare", "select pg_notify('@_wake', 'queue:default')"),
    Attack("set role", "set role @_owner"),
    Attack("prepare", "prepare p{n} as select @.get($1)"),
    Attack("rename", "alter role current_user rename to hostile_{n}"),
    Attack("own functions", "select @.flush('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')"),
    # Locks with the numbers of our gates: any login can take them.
    Attack(
        "advisory locks",
        "select pg_advisory_xact_lock((hashtextextended('\"@\"', 0) & ~2047::bigint) | {n} & 2047)",
        held=True,
    ),
)


def draw(chance: random.Random, role: str, without: frozenset[str]) -> Attack:
    good = [a for a in ATTACKS if a.name not in without and not (role == "client" and a.others)]
    return chance.choice(good)


def text_of(attack: Attack, schema: str, chance: random.Random, newest: int) -> str:
    """The statement, aimed at a recent id or key of the normal load."""
    number = chance.randrange(10**6)
    text = attack.statement.replace("@.", f'"{schema}".').replace("@", schema)
    text = text.replace("{id}", str(max(1, newest - chance.randrange(500)))).replace("{n}", str(number))
    return text.replace("{key}", f"held-{chance.randrange(HELD)}")

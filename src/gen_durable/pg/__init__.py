"""The driver's room: the only imports of asyncpg. Connections that heal, faults told apart, LISTEN, migrations."""

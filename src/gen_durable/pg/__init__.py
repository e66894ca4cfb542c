"""Everything that touches the driver: connections that reconnect, error classification, LISTEN and migrations.

No other package imports asyncpg.
"""

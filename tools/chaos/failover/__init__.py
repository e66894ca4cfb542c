"""Failover: two Postgres nodes under Patroni, a load on them, and the leader taken away.

`python -m tools.chaos.failover`, or `make chaos-failover`. See docs/explanation/failover.md.
"""

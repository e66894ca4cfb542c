"""Makes docs/reference/plans.md: the plans of the hot statements, as Postgres executed them."""

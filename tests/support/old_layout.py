"""A schema that looks as unreleased versions of gen_durable have made it."""

from __future__ import annotations


def old_layout(schema: str) -> str:
    """The SQL that creates it: the table gen_durable with one row, and the migrations 1 to 3."""
    return f"""
        create schema "{schema}";
        create table "{schema}".migrations (
          version int primary key, applied_at timestamptz not null default now()
        );
        insert into "{schema}".migrations (version) values (1), (2), (3);
        create table "{schema}".gen_durable (id bigint primary key);
        insert into "{schema}".gen_durable values (7);
    """

-- metadata_index: the optional index behind list(metadata=...), created by `gen-durable migrate --metadata-index`.
-- Every update of a row that is not in place (HOT) writes to it, so it does not exist by default. Run it outside a
-- transaction; writers continue meanwhile.
create index concurrently if not exists instances_metadata on @schema.instances using gin (metadata jsonb_path_ops)
  where metadata is not null

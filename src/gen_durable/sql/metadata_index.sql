-- metadata_index: the index behind list(metadata=...), for those who ask for it (`gen-durable migrate --metadata-index`).
-- Every update of a row that is not in place writes to it, therefore it is not there by default. Run it outside a
-- transaction; writers go on meanwhile.
create index concurrently if not exists instances_metadata on @schema.instances using gin (metadata jsonb_path_ops)
  where metadata is not null

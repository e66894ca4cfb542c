-- The doctor's advice for an installation with roles: logins that are members of @owner, except that of this session.
--
-- A member may do everything in the schema. Superusers, which may do so without a membership, are not listed.
-- Reads catalogs only. Guarded by tests/cli/test_doctor_roles.py.
with recursive members as (
  select m.member from pg_catalog.pg_auth_members m join pg_catalog.pg_roles r on r.oid = m.roleid
  where r.rolname = '@owner'
  union
  select m.member from members join pg_catalog.pg_auth_members m on m.roleid = members.member
)
select format('login %s is a member of @owner and may do everything in the schema', r.oid::regrole)
from members join pg_catalog.pg_roles r on r.oid = members.member
where r.rolcanlogin and not r.rolsuper and r.rolname <> session_user
order by 1

-- oldest_reader: 2
-- Nodes, cells, their calls and replies, tombstones, shelves and the counters of parked cells.

create table cm_meta (
    one boolean primary key default true check (one),
    version int not null,
    oldest_reader int not null
);

-- The id is never used twice: a node that was declared dead never comes back under its id.
create table cm_nodes (
    id bigint generated always as identity primary key,
    name text not null,
    build text not null,
    version int not null,
    images bytea[] not null default '{}',
    keys bytea[] not null,
    listens boolean not null,
    entered timestamptz not null default clock_timestamp(),
    beat timestamptz not null default clock_timestamp(),
    lease interval not null,
    every interval not null,
    back timestamptz,
    dead timestamptz
) with (fillfactor = 50);
create index cm_nodes_living on cm_nodes (id) where dead is null;

-- state: 0 parked, 1 claimed by a `wait`, 2 running. owner: a node; 0 for none; negative if the
-- owner left while its node lived on. part: the run within the node.
create table cm_cells (
    id text not null,
    agent text not null, session_id text not null, session_key text not null, run text not null,
    image bytea not null,
    state smallint not null,
    kept boolean not null default false,
    aborted boolean not null default false,
    owner bigint not null default 0,
    part int not null default 0,
    fence bigint not null default 0,
    step int not null default 0,
    ttl double precision not null,
    written timestamptz not null,
    expires timestamptz not null,
    due timestamptz,
    mark bytea not null,
    ledger bytea not null,
    record bytea not null,
    snapshot bytea not null,
    primary key (id)
) partition by hash (id);

do $$
begin
    for number in 0..31 loop
        execute format(
            'create table cm_cells_%s partition of cm_cells'
            ' for values with (modulus 32, remainder %s) with (fillfactor = 90)', number, number);
        -- What is sealed cannot be compressed.
        execute format('alter table cm_cells_%s'
            ' alter record set storage external, alter snapshot set storage external,'
            ' alter ledger set storage external, alter mark set storage external', number);
    end loop;
end $$;
create index cm_cells_expires on cm_cells (expires);
-- By a hash, because a session id may be longer than an index row.
create index cm_cells_session on cm_cells (hashtextextended(session_id, 0));

create table cm_calls (
    cell text not null,
    id bigint not null,
    owner bigint not null,
    part int not null,
    state text not null,
    body bytea not null,
    primary key (cell, id)
) with (fillfactor = 90);
alter table cm_calls alter body set storage external;
create index cm_calls_owner on cm_calls (owner, part);

create table cm_replies (
    cell text not null,
    call bigint not null,
    number bigint generated always as identity,
    body bytea not null,
    primary key (cell, call)
);
alter table cm_replies alter body set storage external;

-- One slot per day, four in all. The slot of tomorrow is emptied today: no row is deleted singly.
create table cm_ended (
    slot smallint not null,
    id text not null,
    agent text not null, session_id text not null, session_key text not null, run text not null,
    ending text not null,
    fence bigint not null,
    mark bytea not null,
    ledger bytea not null,
    at timestamptz not null,
    primary key (slot, id)
) partition by list (slot);
create table cm_ended_0 partition of cm_ended for values in (0);
create table cm_ended_1 partition of cm_ended for values in (1);
create table cm_ended_2 partition of cm_ended for values in (2);
create table cm_ended_3 partition of cm_ended for values in (3);

create table cm_shelves (
    session text not null, run text not null, kind text not null, name text not null,
    body bytea not null,
    expires timestamptz not null,
    primary key (session, run, kind, name)
);
alter table cm_shelves alter body set storage external;
create index cm_shelves_expires on cm_shelves (expires);

-- The number of parked cells is the sum. Each server process has its row, so that parks do not
-- wait for each other.
create table cm_counters (shard smallint primary key, parked bigint not null) with (fillfactor = 10);
insert into cm_counters select shard, 0 from generate_series(0, 15) as shard;

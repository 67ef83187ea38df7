-- oldest_reader: 2
-- Nodes that drain, and lists and figures that do not read all cells.

alter table cm_nodes add column draining boolean not null default false;

create index cm_cells_session_key on cm_cells (hashtextextended(session_key, 0));
create index cm_cells_run on cm_cells (hashtextextended(run, 0));

create function cm_drain_node(p_node bigint) returns void language sql as
$$ update cm_nodes set draining = true where id = p_node and dead is null $$;

create function cm_living()
returns table (
    o_id bigint, o_name text, o_build text, o_silent float8, o_draining boolean,
    o_keys bytea[], o_images bytea[])
language sql stable as $$
    select id, name, build, extract(epoch from clock_timestamp() - beat)::float8, draining,
        keys, images
    from cm_nodes where dead is null order by id
$$;

-- The cells that expire first, of those with the given scope, id, session key and run. Null is for
-- any. The statement is made anew, because each combination needs another index.
create function cm_find(p_scope text[], p_id text, p_key text, p_run text, p_limit bigint)
returns table (
    o_id text, o_scope text[], o_state smallint, o_kept boolean, o_held boolean,
    o_ttl float8, o_left float8)
language plpgsql stable as $$
begin
    return query execute
        'select id, array[agent, session_id, session_key, run], state, kept,'
        ' owner > 0 and cm__living(owner), ttl, extract(epoch from expires - $6)::float8'
        ' from cm_cells where (owner <> 0 or aborted or expires > $6)'
        || case when p_scope is null then '' else
            ' and hashtextextended(session_id, 0) = hashtextextended($1[2], 0)'
            ' and array[agent, session_id, session_key, run] = $1' end
        || case when p_id is null then '' else ' and id = $2' end
        || case when p_key is null then '' else
            ' and hashtextextended(session_key, 0) = hashtextextended($3, 0)'
            ' and session_key = $3' end
        || case when p_run is null then '' else
            ' and hashtextextended(run, 0) = hashtextextended($4, 0) and run = $4' end
        || ' order by expires limit $5'
        using p_scope, p_id, p_key, p_run, p_limit, cm__now();
end $$;

-- For operators: what the counters say must be what is there. Rows are counted up to `p_most`.
create function cm_figures(
    p_most bigint, out o_version int, out o_parked bigint, out o_counted bigint,
    out o_running bigint)
language plpgsql stable as $$
declare
    v_rows bigint;
begin
    select version into o_version from cm_meta;
    o_parked := cm_count_parked();
    select count(*), count(*) filter (where state <> 2), count(*) filter (where state = 2)
    into v_rows, o_counted, o_running
    from (select state from cm_cells limit p_most + 1) as first;
    if v_rows > p_most then
        o_counted := null;
        o_running := null;
    end if;
end $$;

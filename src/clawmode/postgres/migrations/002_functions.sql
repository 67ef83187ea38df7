-- oldest_reader: 2
-- One function per method of the store. Those whose names begin with `cm__` are shared by others
-- and never called from outside. A function is one statement and one transaction. Locks are taken
-- in one order: the cell, then its calls and replies, then the counter.

-- The time of cells. Nodes use clock_timestamp() itself.
create function cm__now() returns timestamptz language sql volatile as
$$ select clock_timestamp() $$;

create function cm__slot(p_at timestamptz) returns smallint language sql immutable as
$$ select (floor(extract(epoch from p_at) / 86400)::bigint % 4)::smallint $$;

create function cm__living(p_node bigint) returns boolean language sql stable as
$$ select exists (select from cm_nodes where id = p_node and dead is null) $$;

create function cm__count(p_change int) returns void language plpgsql as $$
begin
    if p_change <> 0 then
        update cm_counters set parked = parked + p_change where shard = pg_backend_pid() & 15;
    end if;
end $$;

create function cm__bury(c cm_cells, p_ending text, p_ledger bytea) returns void
language plpgsql as $$
begin
    delete from cm_cells where id = c.id;
    delete from cm_calls where cell = c.id;
    delete from cm_replies where cell = c.id;
    insert into cm_ended values (
        cm__slot(cm__now()), c.id, c.agent, c.session_id, c.session_key, c.run, p_ending, c.fence,
        c.mark, case when p_ledger = '' then c.ledger else p_ledger end, cm__now())
    on conflict do nothing;
    perform cm__count(case when c.state = 2 then 0 else -1 end);
end $$;

-- Locks a cell. The columns that may be large are not read.
create function cm__lock(p_id text) returns cm_cells language plpgsql as $$
declare
    c cm_cells;
begin
    select id, agent, session_id, session_key, run, image, state, kept, aborted, owner, part,
        fence, step, ttl, written, expires, due, mark, ledger, ''::bytea, ''::bytea
    into c from cm_cells where id = p_id for update;
    return c;
end $$;

create function cm__is_of(c cm_cells, p_scope text[]) returns boolean language sql immutable as
$$ select array[c.agent, c.session_id, c.session_key, c.run] = p_scope $$;

create function cm__is_mine(c cm_cells, p_node bigint, p_part int, p_fence bigint)
returns boolean language sql immutable as $$
    -- Negative for those who have left: they may finish what nobody has taken over.
    select coalesce(not c.aborted and p_node <> 0 and abs(c.owner) = abs(p_node)
        and c.part = p_part and c.fence = p_fence, false)
$$;

-- ---- Nodes ----

-- Registers a node. Its first key seals. Nodes that lack a key of each other would lose programs.
create function cm_enter(
    p_name text, p_build text, p_version int, p_keys bytea[], p_listens boolean,
    p_lease float8, p_every float8, out o_node bigint, out o_strangers text[])
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(20301, 0);
    select array_agg(format('%s (node %s)', n.name, n.id) order by n.id) into o_strangers
    from cm_nodes n
    where n.dead is null and n.beat + n.lease > clock_timestamp()
        and not (p_keys[1] = any(n.keys) and n.keys[1] = any(p_keys));
    if o_strangers is null then
        insert into cm_nodes (name, build, version, keys, listens, lease, every)
        values (p_name, p_build, p_version, p_keys, p_listens,
            make_interval(secs => p_lease), make_interval(secs => p_every))
        returning id into o_node;
    end if;
end $$;

-- Beats, and declares overdue nodes dead. A node whose session is gone (its lock is free) is
-- declared dead after one interval, others after their lease. Nobody is declared dead by a node
-- that was away itself, or soon after a start of the server: the others may be about to return.
create function cm_tick(
    p_node bigint, p_beats boolean, p_images bytea[], out o_living boolean, out o_died bigint[])
language plpgsql as $$
declare
    v_now timestamptz;
    v_me cm_nodes;
    v_id bigint;
begin
    select * into v_me from cm_nodes where id = p_node for no key update;
    v_now := clock_timestamp();
    o_living := v_me.id is not null and v_me.dead is null;
    o_died := '{}';
    if not o_living then
        return;
    end if;
    if v_me.beat + v_me.lease < v_now then
        v_me.back := v_now;
    end if;
    if p_beats then
        update cm_nodes set beat = v_now, images = p_images, back = v_me.back where id = p_node;
    end if;
    if v_me.back + v_me.lease > v_now then
        return;
    end if;
    for v_id in
        select n.id from cm_nodes n
        where n.dead is null and n.id <> p_node
            and v_now - pg_postmaster_start_time() > v_me.lease
            and (n.beat + n.lease < v_now
                or (n.listens and n.beat + n.every * 1.1 < v_now
                    and pg_try_advisory_xact_lock(20302, n.id::int)))
        order by n.id for no key update skip locked
    loop
        update cm_nodes set dead = v_now where id = v_id and dead is null;
        o_died := o_died || v_id;
    end loop;
end $$;

-- The process of a node ends in good order.
create function cm_quit(p_node bigint) returns void language sql as
$$ update cm_nodes set dead = clock_timestamp() where id = p_node and dead is null $$;

-- Gives back what a run had, while its node lives on. `p_cells` are the cells that it held.
create function cm_leave(p_node bigint, p_part int, p_cells text[]) returns void
language plpgsql as $$
begin
    perform from cm_cells where id = any(p_cells) order by id for update;
    update cm_cells set owner = -owner
    where id = any(p_cells) and owner = p_node and part = p_part;
    update cm_calls set owner = -owner where owner = p_node and part = p_part;
end $$;

create function cm_alive(p_node bigint) returns boolean language sql stable as
$$ select cm__living(p_node) $$;

-- ---- Parking ----

create function cm_count_parked() returns bigint language sql stable as
$$ select coalesce(sum(parked), 0)::bigint from cm_counters $$;

create function cm_room(p_limit bigint) returns boolean language sql stable as
$$ select cm_count_parked() < p_limit $$;

-- Stores a cell. `p_runs`: this is a checkpoint, and the owner goes on to run the cell.
create function cm_park(
    p_id text, p_scope text[], p_image bytea, p_ttl float8, p_due float8, p_mark bytea,
    p_ledger bytea, p_record bytea, p_snapshot bytea,
    p_node bigint, p_part int, p_fence bigint, p_again boolean, p_runs boolean, p_limit bigint,
    p_calls bigint[], p_states text[], p_bodies bytea[],
    p_replies bigint[], p_answers bytea[], p_have bigint[],
    out o_status text, out o_fence bigint)
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
    v_now timestamptz := cm__now();
    v_state smallint := case when p_runs then 2 else 0 end;
    v_owner bigint := case when p_runs then p_node else 0 end;
    v_part int := case when p_runs then p_part else 0 end;
    v_due timestamptz := v_now + make_interval(secs => p_due);
    v_expires timestamptz := v_now + make_interval(secs => p_ttl);
begin
    o_status := 'ok';
    o_fence := case when p_again then p_fence when p_runs then 1 else 0 end;
    if c.id is null and not p_again and not exists (select from cm_ended where id = p_id) then
        if p_node > 0 and not cm__living(p_node) then
            o_status := 'dead';
            return;
        end if;
        if not p_runs and not cm_room(p_limit) then
            o_status := 'full';
            return;
        end if;
        insert into cm_cells values (
            p_id, p_scope[1], p_scope[2], p_scope[3], p_scope[4], p_image, v_state, p_runs, false,
            v_owner, v_part, o_fence, 1, p_ttl, v_now, v_expires, v_due,
            p_mark, p_ledger, p_record, p_snapshot);
    elsif c.id is null then
        -- The answer of a park may have been lost, and the cell may have ended elsewhere since.
        if p_runs or p_mark = ''
            or not exists (select from cm_ended where id = p_id and mark = p_mark) then
            o_status := 'gone';
        end if;
        return;
    elsif c.mark = p_mark and p_mark <> '' and not c.aborted
        and (not p_runs or cm__is_mine(c, p_node, p_part, o_fence)) then
        return; -- a repetition
    elsif not (p_again and c.state = 2 and cm__is_mine(c, p_node, p_part, p_fence)) then
        o_status := 'gone';
        return;
    elsif not p_runs and not cm_room(p_limit) then
        o_status := 'full';
        return;
    else
        update cm_cells set image = p_image, state = v_state, kept = p_runs, owner = v_owner,
            part = v_part, step = step + 1, ttl = p_ttl, written = v_now, expires = v_expires,
            due = v_due, mark = p_mark, ledger = p_ledger, record = p_record,
            snapshot = p_snapshot
        where id = p_id;
    end if;
    delete from cm_calls where cell = p_id and abs(owner) = abs(p_node) and part = p_part;
    insert into cm_calls (cell, id, owner, part, state, body)
    select p_id, number, p_node, p_part, state, body
    from unnest(p_calls, p_states, p_bodies) as given (number, state, body)
    on conflict do nothing;
    delete from cm_replies where cell = p_id and call = any(p_have);
    insert into cm_replies (cell, call, body)
    select p_id, number, body from unnest(p_replies, p_answers)
        with ordinality as given (number, body, place) order by place
    on conflict do nothing;
    perform cm__count(case when p_runs then 0 else 1 end);
end $$;

-- ---- Resuming ----

create function cm__calls(p_id text,
    out o_ids bigint[], out o_owners bigint[], out o_parts int[], out o_states text[],
    out o_bodies bytea[])
language sql stable as $$
    select coalesce(array_agg(id order by id), '{}'),
        coalesce(array_agg(owner order by id), '{}'), coalesce(array_agg(part order by id), '{}'),
        coalesce(array_agg(state order by id), '{}'), coalesce(array_agg(body order by id), '{}')
    from cm_calls where cell = p_id
$$;

create function cm_claim(
    p_id text, p_scope text[], p_node bigint, p_part int, p_images bytea[],
    out o_status text, out o_ttl float8, out o_fence bigint, out o_image bytea,
    out o_due float8, out o_age float8, out o_mark bytea, out o_ledger bytea, out o_record bytea,
    out o_ids bigint[], out o_owners bigint[], out o_parts int[], out o_states text[],
    out o_bodies bytea[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
    v_now timestamptz := cm__now();
    v_mine boolean := p_node <> 0 and abs(c.owner) = abs(p_node) and c.part = p_part;
begin
    if p_node > 0 and not cm__living(p_node) then
        o_status := 'dead'; -- the caller does not know yet that its node was declared dead
    elsif c.id is null or c.aborted then
        select e.ending into o_status from cm_ended e where e.id = p_id
            and array[e.agent, e.session_id, e.session_key, e.run] = p_scope;
        if c.aborted and cm__is_of(c, p_scope) then
            o_status := 'aborted';
        end if;
        o_status := coalesce(o_status, 'unknown');
    elsif not cm__is_of(c, p_scope) then
        o_status := 'unknown';
    elsif not v_mine and cm__living(c.owner) then
        o_status := 'busy';
    elsif c.state = 2 and not c.kept then
        o_status := 'lost';
        perform cm__bury(c, 'lost', '');
    elsif not v_mine and c.expires <= v_now then
        o_status := 'expired';
        perform cm__bury(c, 'expired', '');
    elsif p_images is not null and c.image <> '' and c.image <> all (p_images) then
        o_status := 'elsewhere';
    else
        update cm_cells
        set state = 1, owner = p_node, part = p_part, fence = fence + 1
        where id = p_id
        returning 'ok', ttl, fence, image, extract(epoch from due - v_now),
            extract(epoch from v_now - written), mark, ledger, record
        into o_status, o_ttl, o_fence, o_image, o_due, o_age, o_mark, o_ledger, o_record;
        select * from cm__calls(p_id) into o_ids, o_owners, o_parts, o_states, o_bodies;
        perform cm__count((c.state = 2)::int);
    end if;
end $$;

-- Also undoes a take whose answer was lost: its owner has not run the cell.
create function cm_release(p_id text, p_node bigint, p_part int, p_fence bigint) returns boolean
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    if c.id is null or c.owner = 0 or abs(c.owner) <> abs(p_node) or c.part <> p_part
        or c.fence <> p_fence or (c.state = 2 and not c.kept) then
        return false;
    end if;
    update cm_cells
    set state = 0, owner = 0, part = 0, expires = cm__now() + make_interval(secs => ttl)
    where id = p_id;
    perform cm__count((c.state = 2)::int);
    return true;
end $$;

create function cm_progress(
    p_id text, out o_live boolean, out o_replies bigint,
    out o_ids bigint[], out o_owners bigint[], out o_parts int[], out o_states text[],
    out o_bodies bytea[])
language plpgsql stable as $$
begin
    o_live := exists (select from cm_cells where id = p_id and not aborted);
    if o_live then
        select count(*) into o_replies from cm_replies where cell = p_id;
        select * from cm__calls(p_id) into o_ids, o_owners, o_parts, o_states, o_bodies;
    end if;
end $$;

create function cm_take(
    p_id text, p_node bigint, p_part int, p_fence bigint, p_seen bytea, p_mark bytea,
    p_keep boolean,
    out o_taken boolean, out o_scope text[], out o_ttl float8, out o_image bytea,
    out o_due float8, out o_age float8, out o_ledger bytea, out o_record bytea,
    out o_snapshot bytea, out o_ids bigint[], out o_owners bigint[], out o_parts int[],
    out o_states text[], out o_bodies bytea[], out o_calls bigint[], out o_answers bytea[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
    v_now timestamptz := cm__now();
    v_after bytea := case when p_keep then p_seen else p_mark end;
begin
    o_taken := cm__is_mine(c, p_node, p_part, p_fence)
        and c.mark = case when c.state = 2 then v_after else p_seen end
        -- Only a repetition of the same take: else, it would run again from an older snapshot.
        and (c.state <> 2 or c.kept = p_keep);
    if not o_taken then
        return;
    end if;
    if c.state <> 2 then
        update cm_cells set state = 2, kept = p_keep, mark = v_after where id = p_id;
    end if;
    select array[agent, session_id, session_key, run], ttl, image,
        extract(epoch from due - v_now), extract(epoch from v_now - written),
        ledger, record, snapshot
    into o_scope, o_ttl, o_image, o_due, o_age, o_ledger, o_record, o_snapshot
    from cm_cells where id = p_id;
    select * from cm__calls(p_id) into o_ids, o_owners, o_parts, o_states, o_bodies;
    select coalesce(array_agg(call order by number), '{}'),
        coalesce(array_agg(body order by number), '{}')
    into o_calls, o_answers from cm_replies where cell = p_id;
    perform cm__count(case when c.state = 2 then 0 else -1 end);
end $$;

create function cm_drain(
    p_id text, p_node bigint, p_part int, p_fence bigint, p_have bigint[], p_keep boolean,
    out o_live boolean, out o_calls bigint[], out o_answers bytea[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    o_live := cm__is_mine(c, p_node, p_part, p_fence) and c.state = 2;
    if not o_live then
        return;
    end if;
    if not p_keep and p_have <> '{}' then
        delete from cm_replies where cell = p_id and call = any(p_have);
    end if;
    select coalesce(array_agg(call order by number), '{}'),
        coalesce(array_agg(body order by number), '{}')
    into o_calls, o_answers from cm_replies where cell = p_id and call <> all(p_have);
end $$;

-- ---- Calls ----

create function cm_mark(p_id text, p_call bigint, p_node bigint, p_part int, p_state text)
returns boolean language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    if c.id is null or c.aborted then
        return false;
    end if;
    update cm_calls set state = p_state
    where cell = p_id and id = p_call and abs(owner) = abs(p_node) and part = p_part;
    return found;
end $$;

create function cm_adopt(
    p_id text, p_call bigint, p_old bigint, p_old_part int, p_state text,
    p_node bigint, p_part int, p_fence bigint)
returns boolean language plpgsql as $$
begin
    if not cm__is_mine(cm__lock(p_id), p_node, p_part, p_fence) then
        return false;
    end if;
    update cm_calls set owner = p_node, part = p_part
    where cell = p_id and id = p_call and state = p_state
        and ((abs(owner) = abs(p_old) and part = p_old_part)
            or (abs(owner) = abs(p_node) and part = p_part));
    return found;
end $$;

-- Also returns the node that has the cell, to be woken.
create function cm_settle(
    p_id text, p_call bigint, p_node bigint, p_part int, p_reply bytea, p_limit bigint,
    out o_status text, out o_wake bigint[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    o_status := 'gone';
    o_wake := array[c.owner];
    if c.id is null then
        return;
    end if;
    if exists (select from cm_replies where cell = p_id and call = p_call and body = p_reply) then
        o_status := 'kept';
    elsif exists (
        select from cm_calls where cell = p_id and id = p_call and abs(owner) = abs(p_node)
            and part = p_part) then
        o_status := 'full';
        if octet_length(p_reply) + (
            select coalesce(sum(octet_length(body)), 0) from cm_replies where cell = p_id
        ) <= p_limit then
            delete from cm_calls where cell = p_id and id = p_call;
            insert into cm_replies (cell, call, body) values (p_id, p_call, p_reply)
            on conflict do nothing;
            o_status := 'kept';
        end if;
    end if;
end $$;

-- ---- Ending ----

create function cm_end(
    p_id text, p_scope text[], p_ending text, p_fence bigint, p_ledger bytea,
    out o_done boolean, out o_wake bigint[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    o_wake := '{}';
    if c.id is null then
        o_done := exists (
            select from cm_ended where id = p_id and ending = p_ending and fence = p_fence
                and array[agent, session_id, session_key, run] = p_scope);
        return;
    end if;
    o_done := c.fence = p_fence and cm__is_of(c, p_scope);
    if o_done then
        select coalesce(array_agg(owner), '{}') into o_wake from cm_calls where cell = p_id;
        perform cm__bury(c, p_ending, p_ledger);
    end if;
end $$;

-- Deletes a cell that was moved to another store, without a tombstone.
create function cm_discard(p_id text, p_node bigint, p_part int, p_fence bigint) returns boolean
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    if not cm__is_mine(c, p_node, p_part, p_fence) then
        return false;
    end if;
    perform cm__bury(c, 'expired', '');
    delete from cm_ended where id = p_id;
    return true;
end $$;

create function cm_ended(p_id text, p_scope text[], out o_ending text, out o_ledger bytea)
language plpgsql as $$
declare
    c cm_cells;
begin
    select ending, ledger into o_ending, o_ledger from cm_ended
    where id = p_id and array[agent, session_id, session_key, run] = p_scope;
    if o_ending is null and exists (
        select from cm_cells where id = p_id and (aborted or (owner = 0 and expires <= cm__now()))
    ) then
        c := cm__lock(p_id);
        if cm__is_of(c, p_scope) and (c.aborted or (c.owner = 0 and c.expires <= cm__now())) then
            o_ending := case when c.aborted then 'aborted' else 'expired' end;
            o_ledger := c.ledger;
            if not c.aborted then
                perform cm__bury(c, 'expired', '');
            end if;
        end if;
    end if;
end $$;

create function cm__abort(c cm_cells, p_node bigint, p_part int, out o_status text,
    out o_wake bigint[])
language plpgsql as $$
begin
    delete from cm_calls where cell = c.id and abs(owner) = abs(p_node) and part = p_part;
    if abs(c.owner) = abs(p_node) and c.part = p_part and p_node <> 0 then
        update cm_cells set state = 0, owner = 0, part = 0 where id = c.id;
        perform cm__count((c.state = 2)::int);
        c.state := 0;
        c.owner := 0;
    end if;
    select coalesce(array_agg(distinct owner), '{}') into o_wake from (
        select owner from cm_calls where cell = c.id and state = 'running'
        union all select c.owner where c.state = 2) as busy
    where cm__living(owner);
    if o_wake = '{}' then
        o_status := 'ended';
        o_wake := array[c.owner];
        perform cm__bury(c, 'aborted', '');
    else
        o_status := 'asked';
        update cm_cells set aborted = true where id = c.id and not aborted;
        o_wake := o_wake || c.owner;
    end if;
end $$;

-- `p_fence` is given if the owner gives up its share, and nobody asks for an abort. `p_repeats`:
-- the answer to an earlier try may have been lost.
create function cm_abort(
    p_id text, p_scope text[], p_node bigint, p_part int, p_fence bigint, p_repeats boolean,
    out o_status text, out o_wake bigint[])
language plpgsql as $$
declare
    c cm_cells := cm__lock(p_id);
begin
    o_wake := '{}';
    if c.id is null then
        if p_repeats and exists (
            select from cm_ended where id = p_id and ending = 'aborted'
                and array[agent, session_id, session_key, run] = p_scope) then
            o_status := 'ended';
        end if;
    elsif not cm__is_of(c, p_scope) then
        o_status := null;
    elsif not c.aborted and (p_fence <> c.fence or p_fence is not null and c.owner <> 0
        and (abs(c.owner) <> abs(p_node) or c.part <> p_part)) then
        -- Not its share any more, even if nobody has claimed the cell yet: its node was declared
        -- dead, and whoever waits for the cell continues it.
        o_status := 'ended';
    else
        select * into o_status, o_wake from cm__abort(c, p_node, p_part);
    end if;
end $$;

create function cm_end_all(p_scope text[], p_session boolean, p_node bigint, p_part int)
returns table (o_id text, o_status text, o_wake bigint[]) language plpgsql as $$
declare
    v_id text;
    c cm_cells;
begin
    for v_id in
        select id from cm_cells
        where hashtextextended(session_id, 0) = hashtextextended(p_scope[2], 0)
            and agent = p_scope[1] and session_id = p_scope[2] and session_key = p_scope[3]
            and (p_session or run = p_scope[4])
        order by id
    loop
        c := cm__lock(v_id);
        if c.id is not null then
            o_id := v_id;
            select a.o_status, a.o_wake into o_status, o_wake
            from cm__abort(c, p_node, p_part) as a;
            return next;
        end if;
    end loop;
end $$;

create function cm_gone(p_ids text[]) returns setof text language sql stable as $$
    select id from unnest(p_ids) as id
    where not exists (select from cm_cells c where c.id = id.id and not c.aborted)
$$;

create function cm_list(p_scope text[], p_limit bigint)
returns table (
    o_id text, o_scope text[], o_state smallint, o_kept boolean, o_held boolean,
    o_ttl float8, o_left float8)
language sql stable as $$
    select id, array[agent, session_id, session_key, run], state, kept,
        owner > 0 and cm__living(owner), ttl, extract(epoch from expires - cm__now())
    from cm_cells
    where (p_scope is null or array[agent, session_id, session_key, run] = p_scope)
        and (owner <> 0 or aborted or expires > cm__now())
    order by expires limit p_limit
$$;

-- Ends up to `p_most` cells that expired, and drops old shelves and tombstones. Only one node at a
-- time does that. Returns the number of cells.
create function cm_expire(p_most int) returns int language plpgsql as $$
declare
    v_now timestamptz := cm__now();
    v_count int := 0;
    v_next smallint := (cm__slot(v_now) + 1) % 4;
    v_old boolean;
    v_id text;
    c cm_cells;
begin
    if not pg_try_advisory_xact_lock(20301, 1) then
        return 0;
    end if;
    for v_id in
        select id from cm_cells
        where expires <= v_now and (owner = 0 or not cm__living(owner))
        limit p_most for update skip locked
    loop
        c := cm__lock(v_id);
        perform cm__bury(
            c, case when c.aborted then 'aborted'
                when c.state = 2 and not c.kept then 'lost' else 'expired' end, '');
        v_count := v_count + 1;
    end loop;
    delete from cm_shelves where ctid = any(array(
        select ctid from cm_shelves where expires <= v_now limit p_most));
    execute format('select exists (select from cm_ended_%s)', v_next) into v_old;
    if v_old then
        execute format('lock table cm_ended_%s in access exclusive mode', v_next);
        if cm__slot(cm__now()) <> v_next then
            execute format('truncate cm_ended_%s', v_next);
        end if;
    end if;
    return v_count;
end $$;

-- For operators: what the counters say must be what is there.
create function cm_report(
    out o_version int, out o_parked bigint, out o_counted bigint, out o_running bigint,
    out o_names text[], out o_ids bigint[], out o_builds text[], out o_ages float8[])
language plpgsql stable as $$
begin
    select version into o_version from cm_meta;
    select count(*) filter (where state <> 2), count(*) filter (where state = 2)
    into o_parked, o_running from cm_cells;
    select sum(parked) into o_counted from cm_counters;
    select coalesce(array_agg(name order by id), '{}'), coalesce(array_agg(id order by id), '{}'),
        coalesce(array_agg(build order by id), '{}'),
        coalesce(array_agg(extract(epoch from clock_timestamp() - beat) order by id), '{}')
    into o_names, o_ids, o_builds, o_ages from cm_nodes where dead is null;
end $$;

-- ---- Shelves ----

create function cm_shelves() returns table (o_shelf text[], o_left float8)
language sql stable as $$
    select array[session, run, kind], extract(epoch from max(expires) - cm__now())
    from cm_shelves where expires > cm__now() group by session, run, kind
$$;

create function cm_read_shelf(p_shelf text[], p_ttl float8)
returns table (o_name text, o_body bytea) language plpgsql as $$
declare
    v_now timestamptz := cm__now();
begin
    -- Not at each reading: a tenth of the time must have passed.
    update cm_shelves set expires = v_now + make_interval(secs => p_ttl)
    where session = p_shelf[1] and run = p_shelf[2] and kind = p_shelf[3] and expires > v_now
        and expires < v_now + make_interval(secs => p_ttl * 0.9);
    return query select name, body from cm_shelves
    where session = p_shelf[1] and run = p_shelf[2] and kind = p_shelf[3] and expires > v_now;
end $$;

-- Rows without a body are deleted.
create function cm_write_shelf(
    p_shelf text[], p_names text[], p_bodies bytea[], p_ttl float8, p_rows bigint, p_size bigint)
returns boolean language plpgsql as $$
declare
    v_now timestamptz := cm__now();
    v_fits boolean;
begin
    perform pg_advisory_xact_lock(20303, hashtext(p_shelf::text));
    select count(*) <= p_rows and coalesce(sum(size), 0) <= p_size into v_fits from (
        select octet_length(body) as size from cm_shelves
        where session = p_shelf[1] and run = p_shelf[2] and kind = p_shelf[3]
            and expires > v_now and name <> all(p_names)
        union all
        select octet_length(body) from unnest(p_bodies) as body where body is not null) as rows;
    if not v_fits then
        return false;
    end if;
    delete from cm_shelves
    where session = p_shelf[1] and run = p_shelf[2] and kind = p_shelf[3]
        and (expires <= v_now or name = any(p_names));
    insert into cm_shelves
    select p_shelf[1], p_shelf[2], p_shelf[3], name, body, v_now + make_interval(secs => p_ttl)
    from unnest(p_names, p_bodies) as given (name, body) where body is not null;
    return true;
end $$;

create function cm_drop_shelves(p_session text, p_run text) returns void language sql as $$
    delete from cm_shelves where session = p_session and (p_run is null or run = p_run)
$$;

-- oldest_reader: 2
-- Each checkpoint raises the fence.

-- Stores a cell. `p_runs`: this is a checkpoint, and the owner goes on to run the cell. The fence of
-- an earlier checkpoint is old then: the network may deliver that one late, when its sender has
-- given up waiting for the answer and has written others.
create or replace function cm_park(
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
    o_fence := case when p_again then p_fence else 0 end + p_runs::int;
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
            part = v_part, fence = o_fence, step = step + 1, ttl = p_ttl, written = v_now, expires = v_expires,
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

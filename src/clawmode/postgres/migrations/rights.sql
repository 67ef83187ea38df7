-- Run after the steps: who may call the functions, and how these find names.

do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = current_schema()::regnamespace and p.proname like 'cm\_%'
    loop
        execute format('revoke all on function %s from public', v_function);
        if v_function::text not like '%cm\_\_%' then
            execute format(
                'alter function %s set search_path = pg_catalog, %I, pg_temp',
                v_function, current_schema());
            execute format('alter function %s set lock_timeout = ''3s''', v_function);
        end if;
    end loop;
end $$;

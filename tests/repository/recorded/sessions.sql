BEGIN TRANSACTION;
CREATE TABLE sessions (
    id text primary key,
    key text not null, agent text not null,
    current integer not null default 1,
    created real not null, updated real not null,
    title text not null default '', model text not null default '',
    status text not null default '',
    input integer not null default 0, output integer not null default 0,
    cache_read integer not null default 0, cache_write integer not null default 0,
    data text not null default '{}'
);
INSERT INTO "sessions" VALUES('00000000000040008000000000000013','agent:main:main','main',0,1790000007.0,1790000007.5,'A title: ü','openai/gpt-x','ok',1,2,3,4,'{"thinking": "high", "nested": {"a": [1, null]}}');
INSERT INTO "sessions" VALUES('00000000000040008000000000000014','agent:ops:chat:room-1','ops',1,1790000007.25,1790000007.25,'','','',0,0,0,0,'{}');
INSERT INTO "sessions" VALUES('00000000000040008000000000000015','agent:main:main','main',1,1790000007.75,1790000007.75,'A title: ü','openai/gpt-x','',0,0,0,0,'{"thinking": "high", "nested": {"a": [1, null]}}');
CREATE UNIQUE INDEX sessions_by_key on sessions (key) where current;
CREATE INDEX sessions_by_update on sessions (current, updated);
CREATE INDEX sessions_of_key on sessions (key);
COMMIT;
PRAGMA user_version=1;

BEGIN TRANSACTION;
CREATE TABLE messages (
    id text primary key, session_key text not null, message text not null, at real not null
) without rowid;
INSERT INTO "messages" VALUES('message-2','agent:ops:main','{"channel": "room", "target": "#ops", "sender": "ada", "text": "Hallo \u00fc", "id": "42", "images": [["aGk=", "image/png"]], "agent_id": "ops", "session_key": "agent:ops:main", "operator": true}',1790000013.5);
CREATE TABLE requests (
    principal text not null, method text not null, key text not null,
    digest text not null, process text not null, at real not null, answer text,
    primary key (principal, method, key)
) without rowid;
INSERT INTO "requests" VALUES('laptop','agent','key-1','digest-1','process-1',1790000012.75,'{"runId": "run-1", "ok": [1, null]}');
INSERT INTO "requests" VALUES('laptop','agent','key-2','digest-2','process-1',1790000013.0,NULL);
CREATE TABLE runs (
    id text primary key,
    session_key text not null, session_id text not null, agent text not null,
    request text not null, accepted real not null, started real not null default 0,
    ended real not null default 0, status text not null default '', result text
) without rowid;
INSERT INTO "runs" VALUES('run-1','agent:main:main','0123456789abcdef0123456789abcdef','main','{"message": "Do it. \u00fc", "agent_id": "main", "session_key": "agent:main:main", "session_id": "", "model": "openai/gpt-x", "thinking": "low", "verbose": "full", "trace": false, "timeout_seconds": 12.5, "system": "Be short.", "disable_tools": true, "raw_model_call": false, "sender": "ada", "channel": "room", "origin": "webhook", "target": "#ops", "trigger": "cron", "cron_seconds": 60.0, "message_ids": ["message-1"], "images": [{"data": "aGk=", "mediaType": "image/png"}]}',1790000013.75,1790000014.25,1790000014.5,'ok','{"runId": "run-1", "status": "ok", "payloads": [{"text": "Done."}]}');
INSERT INTO "runs" VALUES('run-2','agent:main:main','0123456789abcdef0123456789abcdef','main','{"message": "Wait.", "agent_id": "", "session_key": "", "session_id": "", "model": "", "thinking": null, "verbose": null, "trace": null, "timeout_seconds": null, "system": "", "disable_tools": false, "raw_model_call": false, "sender": "", "channel": "", "origin": "", "target": "", "trigger": "", "cron_seconds": null, "message_ids": [], "images": []}',1790000014.75,1790000015.0,0.0,'',NULL);
CREATE TABLE said (
    id text primary key, run_id text not null, at real not null
) without rowid;
INSERT INTO "said" VALUES('message-1','run-1',1790000014.0);
CREATE INDEX requests_by_age on requests (at);
CREATE INDEX runs_by_age on runs (accepted);
CREATE INDEX runs_open on runs (accepted) where ended = 0;
COMMIT;
PRAGMA user_version=1;

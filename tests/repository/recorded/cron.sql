BEGIN TRANSACTION;
CREATE TABLE jobs (id text primary key, created real not null, data text not null);
INSERT INTO "jobs" VALUES('nightly',1790000009.0,'{"id": "nightly", "message": "Tidy up. Gr\u00fc\u00dfe", "cron": "0 3 * * *", "tz": "Europe/Berlin", "agent": "ops", "model": "openai/gpt-x", "thinking": "high", "timeout_seconds": 90.5, "channel": "room", "target": "#ops"}');
INSERT INTO "jobs" VALUES('often',1790000009.25,'{"id": "often", "message": "Look.", "every": "15m"}');
INSERT INTO "jobs" VALUES('once',1790000009.5,'{"id": "once", "message": "Now.", "at": "2030-01-02T03:04:05", "tz": "UTC"}');
INSERT INTO "jobs" VALUES('off',1790000009.75,'{"id": "off", "message": "Never.", "every": "1h", "enabled": false, "timeout_seconds": 60}');
CREATE TABLE runs (
    number integer primary key,
    job text not null, id text not null unique,
    started real not null, ended real, status text not null,
    error text not null default '', session text not null default '',
    times integer not null default 1
);
INSERT INTO "runs" VALUES(1,'often','00000000000040008000000000000016',1790000010.25,1790000010.5,'ok','','agent:main:cron:often',1);
INSERT INTO "runs" VALUES(2,'often','00000000000040008000000000000017',1790000010.75,1790000011.0,'error','the model failed','agent:main:cron:often',1);
INSERT INTO "runs" VALUES(3,'nightly','00000000000040008000000000000018',1790000011.25,NULL,'running','','',1);
CREATE TABLE states (
    job text primary key,
    signature text not null, since real not null, due real,
    run text not null, owner text not null, lease real not null, forced integer not null,
    attempt integer not null, failures integer not null
);
INSERT INTO "states" VALUES('once','

2030-01-02T03:04:05
UTC
True',1790000009.5,1893553445.0,'','',0.0,0,0,0);
INSERT INTO "states" VALUES('off','
1h


False',1790000009.75,NULL,'','',0.0,0,0,0);
INSERT INTO "states" VALUES('often','
15m


True',1790000009.25,1790000909.25,'','',0.0,0,0,1);
INSERT INTO "states" VALUES('nightly','0 3 * * *


Europe/Berlin
True',1790000009.0,1790038800.0,'00000000000040008000000000000018','scheduler-1',1790000071.25,1,1,0);
CREATE INDEX runs_of_job on runs (job, number);
COMMIT;
PRAGMA user_version=1;

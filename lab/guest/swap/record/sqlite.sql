-- A database in memory: filled, indexed, changed at random, three of four rows deleted, packed, read.
PRAGMA temp_store = MEMORY;
CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, body BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
INSERT INTO t SELECT i, printf('%08x', i * 2654435761 % 4294967296), randomblob(900) FROM n;
CREATE INDEX by_name ON t (name);
UPDATE t SET body = randomblob(900) WHERE id % 5 = 0;
SELECT sum(length(body)) FROM t;
DELETE FROM t WHERE id * 2654435761 % 4 > 0;
SELECT sum(length(body)) FROM t WHERE name > '8';
SELECT count(*) FROM t a JOIN t b ON a.name = b.name;
VACUUM;
SELECT sum(length(body)) FROM t WHERE name > '4';
SELECT count(*) FROM t a JOIN t b ON a.name = b.name;
UPDATE t SET body = randomblob(1200);
SELECT sum(length(body)) FROM t;

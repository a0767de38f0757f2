-- A table with an index: filled, grouped, looked up, changed.
PRAGMA temp_store = MEMORY;
CREATE TABLE t(i INTEGER PRIMARY KEY, k INTEGER, text TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 300000)
  INSERT INTO t SELECT i, (i * 7919) % 400009, printf('row %d of the table, and some more text %d', i, i * 31) FROM c;
CREATE INDEX by_k ON t(k);
SELECT count(*), sum(length(text)) FROM t;
SELECT k % 100, count(*), max(text) FROM t GROUP BY k % 100 LIMIT 3;
SELECT sum(length(b.text)) FROM t a JOIN t b ON b.k = (a.k * 31) % 400009 WHERE a.i % 4 = 0;
UPDATE t SET text = text || '!' WHERE k % 10 = 3;
DELETE FROM t WHERE k % 10 = 7;
SELECT count(*), sum(length(text)) FROM t;

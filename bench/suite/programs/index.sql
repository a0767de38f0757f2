-- SQLite: a table in memory with two indexes, changed, joined with itself and grouped. ROWS is put in by who runs it.
PRAGMA temp_store = memory;
CREATE TABLE entries (id INTEGER PRIMARY KEY, key INTEGER, name TEXT, value INTEGER);
INSERT INTO entries
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
SELECT i, i * 7919 % 400009, 'name ' || (i * 104729 % 1000003) || substr('................................', 1, i % 32), i * i % 10007 FROM n;
CREATE INDEX by_key ON entries(key);
CREATE INDEX by_name ON entries(name);
UPDATE entries SET name = 'other ' || id WHERE key % 5 = 0;
DELETE FROM entries WHERE value % 11 = 0;
SELECT count(*), sum(a.value * b.value % 97) FROM entries a JOIN entries b ON b.key = a.key + 1 WHERE a.id % 3 = 0;
SELECT sum(total) FROM (SELECT substr(name, 1, 8) AS start, sum(value) AS total FROM entries GROUP BY start HAVING count(*) > 2);
SELECT count(*), max(name) FROM entries INDEXED BY by_name WHERE name > 'name 5';

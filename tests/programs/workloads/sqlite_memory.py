"""A database in memory: inserts, an index, updates, deletes, a check of its integrity, and sums."""
import random
import sqlite3
import sys

megabytes = int(sys.argv[1])
source = random.Random(17)
db = sqlite3.connect(":memory:")
db.execute("create table t (id integer primary key, name text, number integer, body blob)")
count = megabytes * 1024 * 1024 // 1100
db.executemany("insert into t values (?, ?, ?, ?)",
               ((i, f"name {i * 7919 % count}", source.randrange(1 << 40), source.randbytes(900)) for i in range(count)))
db.execute("create index by_number on t (number)")
db.execute("create index by_name on t (name)")
print("pages", db.execute("pragma page_count").fetchone())
print("check", db.execute("pragma integrity_check").fetchall())
print("sum", db.execute("select count(*), sum(number), sum(length(body)) from t").fetchone())
db.execute("update t set number = number + 1, name = name || '!' where id % 3 = 0")
db.execute("delete from t where id % 5 = 0")
print("ranges", [db.execute("select count(*), min(id), max(id) from t where number between ? and ?",
                            (i << 36, (i + 1) << 36)).fetchone() for i in range(16)])
print("names", db.execute("select count(*) from t where name like 'name 1%!'").fetchone())
print("blobs", db.execute("select sum(unicode(hex(body))), max(hex(substr(body, 1, 16))) from t").fetchone())
print("check", db.execute("pragma integrity_check").fetchall())

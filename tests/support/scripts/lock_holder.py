"""Hold the write lock of an SQLite file until a line comes, as a program that is not holdfast. lock_holder.py FILE."""

from __future__ import annotations

import sys

import apsw

db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(60_000)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
db.close()

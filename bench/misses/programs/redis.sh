#!/bin/sh
# A redis server, one client that fills it and asks for keys unevenly, and its end. $1: a directory.
set -e
redis-server --save "" --port 0 --unixsocket "$1/redis.sock" --hz 1 --activerehashing no >"$1/redis.log" &
until redis-cli -s "$1/redis.sock" ping >"$1/redis.ping" 2>&1; do sleep 0.1; done
awk -v keys=80000 'BEGIN {
  for (value = ""; length(value) < 800;) value = value sprintf("%x", length(value) * 7919)
  for (i = 0; i < keys; i++) printf "SET key:%d %d%s\n", i, i, value
  for (i = state = 1; i < keys * 2; i++) {
    state = state * 16807 % 2147483647
    # The first keys more often than the last.
    printf "GET key:%d\n", keys * (state / 2147483647) ^ 3
  }
}' | redis-cli -s "$1/redis.sock" >"$1/redis.out"
redis-cli -s "$1/redis.sock" shutdown nosave
wait

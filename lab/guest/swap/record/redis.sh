# A server that is filled, read, loses three of four keys at random, and is read and filled again.
ask() { redis-cli -s /tmp/redis.sock "$@" >/dev/null; }
redis-server --port 0 --unixsocket /tmp/redis.sock --save "" --appendonly no --loglevel warning &
server=$!
until redis-cli -s /tmp/redis.sock ping 2>/dev/null | grep -q PONG; do sleep 0.1; done
fill='for i = ARGV[1], ARGV[2] do redis.call("SET", "key:" .. i, string.rep(tostring(i * 7919 + 1), 110)) end'
read='for i = 1, ARGV[1] do redis.call("GET", "key:" .. math.random(60000)) end'
drop='for i = 1, 60000 do if math.random(4) > 1 then redis.call("DEL", "key:" .. i) end end'
for part in 0 1 2 3 4 5; do ask EVAL "$fill" 0 $((part * 10000 + 1)) $((part * 10000 + 10000)); done
for part in 1 2 3 4; do ask EVAL "$read" 0 3000; done
ask EVAL "$drop" 0
for part in 1 2 3 4 5 6; do ask MEMORY PURGE; ask EVAL "$read" 0 6000; done
ask EVAL "$fill" 0 1 20000
for part in 1 2 3; do ask EVAL "$read" 0 3000; done
kill $server
wait $server

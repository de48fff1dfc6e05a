<?php
// Sessions, a queue and a limiter by php-redis. usage: session.php PORT PORT
// Prints the same at any server of the redis protocol. The second port may be another front end's of the same store.
$at = [];
foreach ([1, 2] as $n) {
    $at[$n] = new Redis();
    $at[$n]->connect('127.0.0.1', (int) $argv[$n]);
}
function say(string $what, $value): void {
    echo $what, ' ', json_encode($value), "\n";
}

// A session, written by PHP's own session handler at one, read at the other.
foreach ([1, 2] as $n) {
    ini_set('session.save_handler', 'redis');
    ini_set('session.save_path', "tcp://127.0.0.1:{$argv[$n]}?prefix=s:");
    ini_set('redis.session.locking_enabled', '1');
    ini_set('session.use_cookies', '0');
    ini_set('session.cache_limiter', '');
    session_id('abc123');
    session_start();
    $_SESSION['count'] = ($_SESSION['count'] ?? 0) + 1;
    $count = $_SESSION['count'];
    session_write_close();
    $_SESSION = [];
}
say('session', [$count, $at[1]->ttl('s:abc123') > 60]);

for ($n = 0; $n < 10; $n++) {
    $at[1 + $n % 2]->rPush('queue', "job$n");
}
$done = [];
while ($job = $at[2]->blPop(["queue"], 1)) {
    $done[] = $job[1];
}
say('queue', $done);

$at[1]->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP);
$at[1]->setEx('value', 60, ['a' => [1, 2]]);
say('value', $at[1]->get('value'));
say('transaction', $at[2]->multi()->incr('n')->hMSet('h', ['f' => 1])->hGetAll('h')->exec());
$script = "local n = redis.call('incr', KEYS[1]); if n == 1 then redis.call('pexpire', KEYS[1], ARGV[1]) end; return n";
$allowed = 0;
for ($n = 0; $n < 8; $n++) {
    $allowed += $at[1 + $n % 2]->eval($script, ['limit', 60000], 1) <= 5;
}
say('limiter', $allowed);
$cursor = null;
$names = [];
while (($some = $at[2]->scan($cursor, '*', 100)) !== false) {
    $names = array_merge($names, $some);
}
sort($names);
say('scan', $names);
say('geo', [$at[1]->rawCommand('GEOADD', 'g', 13.361389, 38.115556, 'Palermo'), $at[2]->geohash('g', 'Palermo')]);

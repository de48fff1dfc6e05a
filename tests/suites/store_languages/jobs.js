// Queues, locks, limiters, streams and messages by libraries for Node. usage: jobs.js PORT PORT
// Prints the same at any server of the redis protocol. The second port may be another front end's of the same store.
const [first, second] = process.argv.slice(2).map(Number);
const Redis = require('ioredis');
const { Queue, Worker, QueueEvents, FlowProducer } = require('bullmq');
const { createClient } = require('redis');
const { RateLimiterRedis } = require('rate-limiter-flexible');
const IORedis = Redis.default || Redis;
const at = (port, more) => new IORedis({ port, host: '127.0.0.1', ...more });
const say = (what, value) => console.log(what, JSON.stringify(value));
const pause = ms => new Promise(done => setTimeout(done, ms));

// BullMQ: jobs, delays, tries, priorities, parents with children, at both ports.
async function bullmq() {
    const [here, there] = [first, second].map(port => ({ port, host: '127.0.0.1', maxRetriesPerRequest: null }));
    const queue = new Queue('jobs', { connection: here });
    const events = new QueueEvents('jobs', { connection: there });
    await events.waitUntilReady();
    const work = async job => {
        if (job.name === 'fails') throw new Error('no');
        if (job.name === 'parent') return Object.values(await job.getChildrenValues()).sort((a, b) => a - b);
        await job.updateProgress(50);
        return job.data.n + 1;
    };
    const workers = [here, there].map(connection => new Worker('jobs', work, { connection, concurrency: 4 }));
    const jobs = await queue.addBulk([...Array(60).keys()].map(n => ({ name: 'add', data: { n } })));
    const sums = await Promise.all(jobs.map(job => job.waitUntilFinished(events)));
    say('bullmq sums', sums);
    const late = await queue.add('add', { n: 100 }, { delay: 300, priority: 3 });
    say('bullmq late', await late.waitUntilFinished(events));
    const fails = await queue.add('fails', {}, { attempts: 3, backoff: { type: 'fixed', delay: 50 } });
    say('bullmq fails', await fails.waitUntilFinished(events).catch(error => error.message));
    const flow = new FlowProducer({ connection: there });
    const children = [1, 2, 3].map(n => ({ name: 'add', queueName: 'jobs', data: { n } }));
    const tree = await flow.add({ name: 'parent', queueName: 'jobs', children });
    say('bullmq parent', await tree.job.waitUntilFinished(events));
    say('bullmq counts', await queue.getJobCounts('completed', 'failed', 'waiting', 'delayed', 'active'));
    const failed = (await queue.getFailed())[0];
    say('bullmq failed', [failed.attemptsMade, failed.failedReason]);
    await Promise.all([...workers, events, flow].map(one => one.close()));
    await queue.add('add', { n: 1 }, { repeat: { every: 60000 }, jobId: 'again' });
    say('bullmq repeats', (await queue.getJobSchedulersCount?.()) ?? 1);
    await queue.obliterate({ force: true });
    await queue.close();
}

// A lock of which one token holds at a time, by SET NX PX and a script, as redlock has it.
async function lock() {
    const clients = [first, second].map(port => at(port));
    clients.forEach(client => client.defineCommand('release', {
        numberOfKeys: 1,
        lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    }));
    let [held, most, count] = [0, 0, 0];
    await Promise.all([...Array(20).keys()].map(async n => {
        const client = clients[n % 2];
        while (await client.set('lock', `token${n}`, 'PX', 10000, 'NX') !== 'OK') await pause(2);
        most = Math.max(most, ++held);
        await client.get('lock');
        held--;
        count += await client.release('lock', `token${n}`);
    }));
    say('lock', [most, count, await clients[0].release('lock', 'nobody')]);
    clients.forEach(client => client.disconnect());
}

// A limiter of requests: 5 in a while, asked for by both.
async function limiter() {
    const clients = [first, second].map(port => at(port));
    const limiters = clients.map(storeClient => new RateLimiterRedis({ storeClient, points: 5, duration: 60 }));
    const asked = [...Array(8).keys()].map(n => limiters[n % 2].consume('user').then(() => 1, () => 0));
    say('limiter', (await Promise.all(asked)).reduce((sum, one) => sum + one));
    clients.forEach(client => client.disconnect());
}

// Consumers of a stream: each entry is delivered once, and all are acknowledged.
async function stream() {
    const [a, b] = [at(first), at(second)];
    await a.xgroup('CREATE', 'stream', 'group', '$', 'MKSTREAM');
    for (let n = 0; n < 30; n++) await (n % 2 ? a : b).xadd('stream', '*', 'n', n);
    const seen = [];
    const consume = async (client, name) => {
        for (;;) {
            const found = await client.xreadgroup('GROUP', 'group', name, 'COUNT', 4, 'BLOCK', 300, 'STREAMS', 'stream', '>');
            if (!found) return;
            for (const [id, fields] of found[0][1]) {
                seen.push(Number(fields[1]));
                await client.xack('stream', 'group', id);
            }
        }
    };
    await Promise.all([consume(a, 'one'), consume(b, 'two')]);
    say('stream', [seen.sort((x, y) => x - y), await a.xpending('stream', 'group'), await b.xlen('stream')]);
    [a, b].forEach(client => client.disconnect());
}

// Messages, by node-redis: to subscribers by name and by pattern.
async function messages() {
    const [talks, hears] = [first, second].map(port => createClient({ url: `redis://127.0.0.1:${port}` }));
    await Promise.all([talks.connect(), hears.connect()]);
    const heard = [];
    await hears.subscribe('news', text => heard.push(text));
    await hears.pSubscribe('n*', (text, channel) => heard.push(`${channel} ${text}`));
    say('numsub', await talks.pubSubNumSub(['news']));
    for (let n = 0; n < 10; n++) await talks.publish('news', String(n));
    while (heard.length < 20) await pause(5);
    say('messages', heard.sort());
    await Promise.all([talks.close(), hears.close()]);
}

// A transaction with WATCH, by node-redis: of two that change a watched key, one wins.
async function transaction() {
    const [a, b] = [first, second].map(port => createClient({ url: `redis://127.0.0.1:${port}`, RESP: 3 }));
    await Promise.all([a.connect(), b.connect()]);
    await a.set('balance', '10');
    await a.watch('balance');
    await b.incr('balance');
    say('watched', await a.multi().set('balance', '0').exec().catch(error => error.constructor.name));
    say('unwatched', await a.multi().incr('balance').hSet('h', { f: '1', g: '2' }).hGetAll('h').exec());
    say('pipeline', await Promise.all([...Array(200).keys()].map(n => a.incrBy('sum', n))).then(all => Math.max(...all)));
    await Promise.all([a.close(), b.close()]);
}

(async () => {
    for (const job of [bullmq, lock, limiter, stream, messages, transaction]) await job();
    process.exit(0);
})().catch(error => {
    console.log(error.stack);
    process.exit(1);
});

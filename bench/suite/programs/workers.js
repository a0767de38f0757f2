// node: worker threads, each with a heap of its own, that keep maps of objects, replace them and parse JSON.
//
// workers.js THREADS ENTRIES OPERATIONS: prints a sum that depends on the arguments alone.
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

function work({ nr, entries, operations }) {
  let state = nr + 12345;
  const below = (n) => {
    state = (state * 16807) % 2147483647;
    return state % n;
  };
  const table = new Map();
  let sum = 0;
  for (let i = 0; i < operations; i++) {
    const key = below(entries);
    const old = table.get(key);
    if (old) sum = (sum * 31 + old.id + old.name.length + old.values.length) % 1000000007;
    table.set(key, { id: i, name: `entry ${key} of ${i}`, values: Array.from({ length: below(20) }, (_, n) => n * i) });
    if (i % 100 === 0) {
      const copy = JSON.parse(JSON.stringify([...Array(20).keys()].map((n) => table.get(key + n) ?? null)));
      sum = (sum + copy.filter((one) => one !== null).length) % 1000000007;
    }
  }
  return sum;
}

if (isMainThread) {
  const [threads, entries, operations] = process.argv.slice(2).map(Number);
  const sums = [];
  for (let nr = 0; nr < threads; nr++) {
    const worker = new Worker(__filename, { workerData: { nr, entries, operations } });
    worker.on('message', (sum) => {
      sums[nr] = sum;
      if (sums.filter((one) => one !== undefined).length === threads) console.log(sums.join(' '));
    });
    worker.on('error', (error) => { throw error; });
  }
} else {
  parentPort.postMessage(work(workerData));
}

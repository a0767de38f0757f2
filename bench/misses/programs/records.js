// Records in a map: made, walked, looked up unevenly, replaced.
const n = Number(process.argv[2]);
let state = 1, sum = 0;
const dice = () => { state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff; return (state >> 8) % n; };
const skewed = () => Math.min(dice(), dice(), dice());
const of = new Map();
for (let i = 0; i < n; i++) of.set(`key ${i}`, [i, `value of ${i} `.repeat(3), { one: i + 1, two: i + 2 }]);
for (const key of [...of.keys()].sort()) sum += of.get(key)[0];
for (let i = 0; i < n / 2; i++) sum += of.get(`key ${skewed()}`)[2].two;
for (let k = 0; k < n / 4; k++) { const i = skewed(); of.set(`key ${i}`, [i, `new value ${i} `.repeat(3), { one: i, two: i + 2 }]); }
console.log(sum);

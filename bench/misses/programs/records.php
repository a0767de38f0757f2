<?php
// Records in an array: made, walked, looked up unevenly, replaced.
ini_set('memory_limit', '-1');
$n = (int) $argv[1]; $state = 1; $sum = 0; $of = [];
function dice() { global $state, $n; $state = ($state * 1103515245 + 12345) & 0x7fffffff; return ($state >> 8) % $n; }
function skewed() { return min(dice(), dice(), dice()); }
for ($i = 0; $i < $n; $i++) $of["key $i"] = [$i, str_repeat("value of $i ", 3), [$i + 1, $i + 2]];
$keys = array_keys($of); sort($keys);
foreach ($keys as $key) $sum += $of[$key][0];
for ($k = 0; $k < $n / 2; $k++) $sum += $of["key " . skewed()][2][1];
for ($k = 0; $k < $n / 4; $k++) { $i = skewed(); $of["key $i"] = [$i, str_repeat("new value $i ", 3), [$i, $i + 2]]; }
echo "$sum\n";

<?php
// PHP: an array of records with strings and arrays in them, indexed by two keys, sorted by three ways.
//
// records.php RECORDS: prints a sum that depends on the argument alone.
ini_set('memory_limit', '-1');
$count = (int)$argv[1];
mt_srand(7);
$records = [];
$by_group = [];
for ($i = 0; $i < $count; $i++) {
    $records[$i] = ['id' => $i, 'name' => 'name-' . mt_rand(0, $count), 'tags' => [mt_rand(0, 6), mt_rand(0, 10)]];
    $by_group[$records[$i]['tags'][0]][$records[$i]['name']][] = $i;
}
$sum = 0;
foreach (['name', 'id'] as $key) {
    usort($records, fn($a, $b) => [$a['tags'][1], $a[$key]] <=> [$b['tags'][1], $b[$key]] ?: $a['id'] <=> $b['id']);
    foreach ($records as $nr => $record) {
        $sum = ($sum * 31 + $record['id'] + $nr) % 1000000007;
    }
}
foreach ($by_group as $group => $names) {
    ksort($names);
    foreach ($names as $name => $ids) {
        $sum = ($sum * 31 + strlen($name) + array_sum($ids) + $group) % 1000000007;
    }
}
echo count($records), " records, $sum\n";

# Records in a hash: made, walked, looked up unevenly, replaced.
use strict; use warnings; use integer;
my ($n, $state, $sum, %of) = ($ARGV[0], 1, 0);
sub dice { $state = ($state * 1103515245 + 12345) & 0x7fffffff; return ($state >> 8) % $_[0] }
sub skewed { my ($a, $b, $c) = (dice($n), dice($n), dice($n)); my $m = $a < $b ? $a : $b; return $m < $c ? $m : $c }
$of{"key $_"} = [$_, "value of $_ " x 3, [$_ + 1, $_ + 2]] for 0 .. $n - 1;
for my $key (sort keys %of) { $sum += $of{$key}[0] }
for (1 .. $n / 2) { $sum += $of{"key " . skewed()}[2][1] }
for (1 .. $n / 4) { my $i = skewed(); $of{"key $i"} = [$i, "new value $i " x 3, [$i, $i + 2]] }
print "$sum\n";

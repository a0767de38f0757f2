# Perl: counts words that repeat unevenly in a hash, sorts them by count, and groups them by their first letters.
#
# words.pl TEXT: prints a sum over the order, which depends on the text alone.
use strict;
use warnings;

my (%count, %places);
open my $text, '<', $ARGV[0] or die "words.pl: $ARGV[0]: $!\n";
while (my $line = <$text>) {
    for my $word (split ' ', $line) {
        $count{$word}++;
        push @{ $places{ substr $word, 0, 3 } }, $. if $count{$word} < 20;
    }
}
my ($sum, $rank) = (0, 0);
for my $word (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count) {
    $rank++;
    $sum = ($sum * 31 + $rank * length($word) + $count{$word}) % 1_000_000_007;
}
for my $start (sort keys %places) {
    $sum = ($sum * 31 + $_) % 1_000_000_007 for sort { $b <=> $a } @{ $places{$start} };
}
print "$rank words, $sum\n";

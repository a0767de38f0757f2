# awk: counts words and pairs of words in arrays, and sums over them by length.
#
# awk -f words.awk TEXT: prints sums that depend on the text alone.
{
    for (i = 1; i <= NF; i++) {
        count[$i]++
        if (i > 1) pairs[$(i - 1), $i] = NR
    }
}
END {
    for (word in count) { words++; by_length[length(word)] += count[word] }
    for (pair in pairs) { split(pair, two, SUBSEP); last += pairs[pair]; joined += count[two[1]] * count[two[2]] % 97 }
    for (n = 1; n < 40; n++) sum = (sum * 31 + by_length[n]) % 1000000007
    printf "%d words, %d, %.0f, %.0f\n", words, sum, last, joined
}

# Records in a hash: made, walked, looked up unevenly, replaced.
n, state, sum, of = ARGV[0].to_i, 1, 0, {}
dice = -> { state = (state * 1103515245 + 12345) & 0x7fffffff; (state >> 8) % n }
skewed = -> { [dice.(), dice.(), dice.()].min }
n.times { |i| of["key #{i}"] = [i, "value of #{i} " * 3, [i + 1, i + 2]] }
of.keys.sort.each { |key| sum += of[key][0] }
(n / 2).times { sum += of["key #{skewed.()}"][2][1] }
(n / 4).times { i = skewed.(); of["key #{i}"] = [i, "new value #{i} " * 3, [i, i + 2]] }
puts sum

# Ruby: a ledger of entries in hashes and arrays of small objects, grouped, sorted and partly replaced.
#
# ledger.rb ENTRIES ROUNDS: prints a sum that depends on the arguments alone.
Entry = Struct.new(:id, :account, :amount, :note)

count, rounds = ARGV.map(&:to_i)
random = Random.new(5)
make = ->(id) { Entry.new(id, random.rand(count / 10), random.rand(10_000), "entry #{id} of #{random.rand(1000)}") }
ledger = {}
count.times { |id| ledger["key-#{id}"] = make.(id) }
sum = 0
rounds.times do |round|
  (count / 8).times do
    id = random.rand(count)
    ledger["key-#{id}"] = make.(id + round)
  end
  by_account = ledger.values.group_by(&:account)
  by_account.sort.each do |account, entries|
    entries.sort_by! { |entry| [entry.amount, entry.id] }
    sum = (sum * 31 + account + entries.first.amount + entries.last.note.size) % 1_000_000_007
  end
end
puts "#{ledger.size} entries, #{sum}"

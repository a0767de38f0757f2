import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Random;

/**
 * Java: threads that each keep a table of strings and arrays, replace its entries at random and throw lists away.
 *
 * Allocations THREADS ENTRIES OPERATIONS: prints a sum that depends on the arguments alone.
 */
final class Allocations {
    record Entry(long id, String name, int[] values) {}

    static long work(int nr, int entries, int operations) {
        Random random = new Random(nr);
        HashMap<Long, Entry> table = new HashMap<>();
        long sum = 0;
        for (int i = 0; i < operations; i++) {
            long key = random.nextInt(entries);
            Entry old = table.put(key, new Entry(i, "entry " + key + " of " + i, new int[random.nextInt(60)]));
            if (old != null) {
                sum = sum * 31 + old.id + old.name.length() + old.values.length;
            }
            if (i % 1000 == 0) {
                List<Entry> some = new ArrayList<>();
                for (long near = key; near < key + 200; near++) {
                    Entry found = table.get(near);
                    if (found != null) {
                        some.add(found);
                    }
                }
                some.sort((a, b) -> Long.compare(b.id, a.id));
                sum = sum * 31 + some.size() + (some.isEmpty() ? 0 : some.get(0).id);
            }
        }
        return sum;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        int entries = Integer.parseInt(arguments[1]);
        int operations = Integer.parseInt(arguments[2]);
        long[] sums = new long[count];
        Thread[] threads = new Thread[count];
        for (int nr = 0; nr < count; nr++) {
            int mine = nr;
            threads[nr] = new Thread(() -> sums[mine] = work(mine, entries, operations));
            threads[nr].start();
        }
        long sum = 0;
        for (int nr = 0; nr < count; nr++) {
            threads[nr].join();
            sum = sum * 31 + sums[nr];
        }
        System.out.println(sum);
    }
}

// Records in a map: made, walked, looked up unevenly, replaced.
import java.util.*;

class Records {
    record Item(int i, String text, int[] more) {}

    static int n, state = 1;

    static int dice() {
        state = (state * 1103515245 + 12345) & 0x7fffffff;
        return (state >> 8) % n;
    }

    static int skewed() { return Math.min(dice(), Math.min(dice(), dice())); }

    public static void main(String[] args) {
        n = Integer.parseInt(args[0]);
        long sum = 0;
        var of = new HashMap<String, Item>();
        for (int i = 0; i < n; i++) of.put("key " + i, new Item(i, ("value of " + i + " ").repeat(3), new int[] {i + 1, i + 2}));
        for (String key : new TreeSet<>(of.keySet())) sum += of.get(key).i;
        for (int i = 0; i < n / 2; i++) sum += of.get("key " + skewed()).more[1];
        for (int k = 0; k < n / 4; k++) {
            int i = skewed();
            of.put("key " + i, new Item(i, ("new value " + i + " ").repeat(3), new int[] {i, i + 2}));
        }
        System.out.println(sum);
    }
}

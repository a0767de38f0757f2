// Says how large its heap may become, then fills some of it and reads it back.
// Usage: java Hold ENTRIES
import java.util.HashMap;

public class Hold {
    public static void main(String[] arguments) {
        System.out.println(Runtime.getRuntime().maxMemory());
        int entries = Integer.parseInt(arguments[0]);
        HashMap<Integer, String> all = new HashMap<>();
        for (int i = 0; i < entries; i++)
            all.put(i, "value-" + i + "-" + Integer.toHexString(i * 40503));
        long sum = 7;
        for (int i = 0; i < entries; i++)
            sum = sum * 31 + all.get(i).hashCode();
        System.out.println(all.size() + " " + sum);
    }
}

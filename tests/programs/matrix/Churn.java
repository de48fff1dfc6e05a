import java.util.*;
import java.util.concurrent.*;

/** A collector with SIGSEGV handlers of its own, reservations committed piecemeal, threads, traps. */
public class Churn {
    public static void main(String[] arguments) throws Exception {
        int n = 60000 * Integer.parseInt(arguments[0]);
        Map<String, int[]> m = new HashMap<>();
        for (int i = 0; i < n; i++) m.put("k" + i * 7919L % n, new int[] {i, i % 50});
        long t = 0;
        for (var e : new TreeMap<>(m).entrySet()) t = (t * 31 + e.getValue()[0] + e.getKey().length()) % 1000000007L;
        System.out.println(m.size() + " " + t);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> parts = new ArrayList<>();
        for (int k = 0; k < 6; k++) {
            Random r = new Random(k);
            parts.add(pool.submit(() -> garbage(r, n / 2)));
        }
        for (var part : parts) System.out.println(part.get());
        pool.shutdown();
        Integer[] a = new Integer[n];
        for (int i = 0; i < n; i++) a[i] = (int) (i * 104729L % n);
        Arrays.parallelSort(a);
        System.out.println(Arrays.hashCode(a));
        try {
            Object nothing = arguments.length > 9 ? "" : null;
            System.out.println(nothing.hashCode());
        } catch (NullPointerException e) {
            System.out.println("null");
        }
        try {
            deeper(0);
        } catch (StackOverflowError e) {
            System.out.println("deep");
        }
    }

    static long garbage(Random r, int rounds) {
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < rounds; i++) {
            byte[] b = new byte[1 + r.nextInt(2000)];
            b[b.length / 2] = (byte) i;
            if (kept.size() < 4000) kept.add(b); else kept.set(r.nextInt(4000), b);
        }
        long digest = 0;
        for (byte[] b : kept) digest = digest * 31 + Arrays.hashCode(b);
        return digest;
    }

    static int deeper(int i) {
        return deeper(i + 1) + 1;
    }
}

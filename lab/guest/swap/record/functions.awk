# A C file of COUNT functions for the compiler, with loops and switches to optimize.
BEGIN {
    for (i = 0; i < COUNT; i++) {
        printf "static int f%d(int *a, int n) { int s = %d; for (int i = 0; i < n; i++) { switch (a[i] %% %d) {", i, i, 5 + i % 7
        for (k = 0; k < 5; k++) printf " case %d: s += a[i] * %d ^ (s >> %d); break;", k, i + k, 1 + k
        printf " default: a[i] ^= s; } } return s; }\n"
    }
    print "int all(int *a, int n) { int s = 0;"
    for (i = 0; i < COUNT; i++) printf " s += f%d(a, n - %d);", i, i % 9
    print " return s; }"
}

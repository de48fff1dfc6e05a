/* Ranks of a message passing library exchange far memory: large messages in a ring, and all with all. Left to itself such
   a library has one process copy from another's memory by process_vm_readv, which finds resident pages only. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 2 << 20, ROUNDS = 4 };

static double sum(const double *words, int modulus) {
    double sum = 0;
    for (size_t i = 0; i < WORDS; i++) sum += words[i] * (double)(i % modulus);
    return sum;
}

int main(int count, char **words) {
    int rank, ranks;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *sent = malloc(WORDS * sizeof *sent), *got = malloc(WORDS * sizeof *got), found[2] = {0, 0}, all[2];
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < WORDS; i++) sent[i] = (double)(i * 7 + rank * 13 + round);
        MPI_Sendrecv(sent, WORDS, MPI_DOUBLE, next, round, got, WORDS, MPI_DOUBLE, before, round, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        found[0] += sum(got, 5);
    }
    MPI_Alltoall(sent, WORDS / ranks, MPI_DOUBLE, got, WORDS / ranks, MPI_DOUBLE, MPI_COMM_WORLD);
    found[1] = sum(got, 3) * (rank + 1);
    MPI_Reduce(found, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%.0f %.0f\n", all[0], all[1]);
    MPI_Finalize();
    return 0;
}

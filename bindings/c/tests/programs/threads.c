/*
 * Threads that share a file, and each have a queue: neighbours in the same blocks lose no byte. The
 * first argument is the backend, if there is one.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, PIECE = 333, PIECES = 64 };

static struct dpt_file *file;
static const char *backend;

/* The piece of a round and a thread: neighbours are other threads'. */
static int64_t place(int round, int thread)
{
    return ((int64_t)round * THREADS + thread) * PIECE;
}

static void *work(void *argument)
{
    int thread = *(const int *)argument;
    struct dpt_queue *queue = make_queue(backend);
    unsigned char memory[8][PIECE];
    for (int round = 0; round < PIECES; round += 8) {
        struct dpt_completion done[8];
        for (int at = 0; at < 8; at++) {
            struct dpt_request request = request_of(file, DPT_OP_WRITE, place(round + at, thread),
                                                    memory[at], PIECE, (uint64_t)at);
            memset(memory[at], 'a' + thread, PIECE);
            if (at % 2 == 0)
                CHECK(dpt_queue_submit(queue, &request, 1) == 1);
        }
        /* Blocking calls meanwhile, on another engine of this thread. */
        for (int at = 1; at < 8; at += 2) {
            CHECK(dpt_pwrite(file, memory[at], PIECE, place(round + at, thread)) == PIECE);
        }
        CHECK(dpt_queue_complete(queue, done, 4, 8, -1) == 4);
        for (int at = 0; at < 4; at++)
            CHECK(done[at].result == PIECE);
    }
    CHECK(dpt_queue_destroy(queue) == 0);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    backend = argc > 1 ? argv[1] : NULL;
    file = make_file("data", (size_t)THREADS * PIECE * PIECES);
    for (int at = 0; at < THREADS; at++) {
        numbers[at] = at;
        CHECK(pthread_create(&threads[at], NULL, work, &numbers[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    for (int round = 0; round < PIECES; round++) {
        for (int thread = 0; thread < THREADS; thread++) {
            unsigned char piece[PIECE];
            CHECK(dpt_pread(file, piece, PIECE, place(round, thread)) == PIECE);
            for (int at = 0; at < PIECE; at++)
                CHECK(piece[at] == 'a' + thread);
        }
    }
    CHECK(dpt_file_close(file) == 0);
    return 0;
}

/*
 * Reads random blocks of a file, many at a time, and prints what they took.
 *
 * cc random_read.c -o random_read $(pkg-config --cflags --libs diopter)
 */
#include <diopter.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 32, BLOCK = 4096, READS = 1000 };

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, dpt_strerror_detail());
    return 1;
}

static int submit_one(struct dpt_queue *queue, struct dpt_file *file, char *memory, uint64_t slot,
                      int64_t blocks)
{
    struct dpt_request request;
    memset(&request, 0, sizeof request);
    request.file = file;
    request.op = DPT_OP_READ;
    request.offset = rand() % blocks * BLOCK;
    request.buf = memory + slot * BLOCK;
    request.length = BLOCK;
    request.user_data = slot;
    return dpt_queue_submit(queue, &request, 1);
}

int main(int argc, char **argv)
{
    struct dpt_file *file;
    struct dpt_queue *queue;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    if (dpt_file_open(argv[1], O_RDONLY, 0, NULL, &file) < 0)
        return fail("open");
    struct dpt_queue_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = DPT_QUEUE_TIMINGS;
    if (dpt_queue_create(&options, &queue) < 0)
        return fail("queue");
    int64_t blocks = dpt_file_size(file) / BLOCK;
    char *memory = aligned_alloc(BLOCK, DEPTH * BLOCK);
    if (memory == NULL || blocks < 1)
        return fail("the file needs one block of 4096 bytes");

    int submitted = 0, finished = 0;
    uint64_t direct = 0, longest = 0;
    for (uint64_t slot = 0; slot < DEPTH; slot++, submitted++)
        if (submit_one(queue, file, memory, slot, blocks) < 0)
            return fail("submit");
    while (finished < submitted) {
        struct dpt_completion done[DEPTH];
        int count = dpt_queue_complete(queue, done, 1, DEPTH, -1);
        if (count < 0)
            return fail("complete");
        for (int at = 0; at < count; at++) {
            if (done[at].result < 0) {
                fprintf(stderr, "read: %s\n", dpt_completion_detail(queue, (unsigned)at));
                return 1;
            }
            direct += done[at].route.direct;
            if (done[at].timing.finished > longest)
                longest = done[at].timing.finished;
            /* The memory of a finished request serves the next one. */
            if (submitted < READS) {
                if (submit_one(queue, file, memory, done[at].user_data, blocks) < 0)
                    return fail("submit");
                submitted++;
            }
        }
        finished += count;
    }
    printf("%d reads by %s, %llu bytes direct, longest %llu us\n", finished,
           dpt_queue_backend(queue), (unsigned long long)direct,
           (unsigned long long)longest / 1000);
    if (dpt_queue_destroy(queue) < 0)
        return fail("destroy");
    free(memory);
    return dpt_file_close(file) < 0 ? fail("close") : 0;
}

/*
 * Memory that cannot be read or written is an error, at each alignment. The first argument is the
 * backend, if there is one. valgrind reports the requests that the kernel refuses.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>

static void unusable(struct dpt_file *file, const char *backend)
{
    size_t length = 1 << 16;
    char *sealed = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *closed = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sealed != MAP_FAILED && closed != MAP_FAILED);
    struct dpt_queue *queue = make_queue(backend);
    struct {
        size_t start, count;
        int64_t offset;
    } each[] = {{0, 4096, 0}, {0, 5, 0}, {1, 4096, 0}, {7, 5000, 3}, {0, 4096, 1}, {4095, 2, 4095}};
    for (size_t at = 0; at < sizeof each / sizeof each[0]; at++) {
        size_t count = each[at].count;
        int64_t offset = each[at].offset;
        char byte = 0;
        struct iovec read[2] = {{&byte, 1}, {sealed + each[at].start, count}};
        struct iovec write[2] = {{&byte, 1}, {closed + each[at].start, count}};
        REFUSED(dpt_pread(file, read[1].iov_base, count, offset), EFAULT);
        REFUSED(dpt_pwrite(file, write[1].iov_base, count, offset), EFAULT);
        for (int first = 0; first < 2; first++) {
            REFUSED(dpt_preadv(file, read + first, 2 - first, offset), EFAULT);
            REFUSED(dpt_pwritev(file, write + first, 2 - first, offset), EFAULT);
        }
        uint32_t ops[2] = {DPT_OP_READ, DPT_OP_WRITE};
        void *memory[2] = {read[1].iov_base, write[1].iov_base};
        for (int op = 0; op < 2; op++) {
            struct dpt_request request = request_of(file, ops[op], offset, memory[op], count, 0);
            struct dpt_completion done;
            int started = dpt_queue_submit(queue, &request, 1);
            if (started == -EFAULT)
                continue;
            /* The kernel looks at aligned memory. */
            CHECK(started == 1 && at == 0);
            CHECK(dpt_queue_complete(queue, &done, 1, 1, -1) == 1 && done.result == -EFAULT);
        }
    }
    REFUSED(dpt_preadv(file, (struct iovec *)closed, 1, 0), EFAULT);
    /* Bytes past the end of the file are not used. */
    char *last = sealed + length - 4096;
    CHECK(mprotect(last, 4096, PROT_READ | PROT_WRITE) == 0);
    CHECK(munmap(sealed, length - 4096) == 0);
    CHECK(dpt_pread(file, last + 4095, 1 << 20, 9999) == 1);
    CHECK(munmap(last, 4096) == 0 && munmap(closed, length) == 0);
    CHECK(dpt_queue_destroy(queue) == 0);
}

int main(int argc, char **argv)
{
    struct dpt_file *file = make_file("data", 10000);
    unusable(file, argc > 1 ? argv[1] : NULL);
    CHECK(dpt_file_close(file) == 0);
    return 0;
}

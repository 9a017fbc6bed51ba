/*
 * A queue whose io_uring is forbidden while requests are in the kernel: what may still be written
 * is never returned, and the queue reports that.
 */
#define _GNU_SOURCE
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { COUNT = 32, LENGTH = 1 << 20 };

static void forbid_io_uring(void)
{
    struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, (unsigned)offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_enter},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
}

int main(void)
{
    struct dpt_queue *queue;
    struct dpt_completion done[COUNT];
    struct dpt_queue_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = "uring";
    if (dpt_queue_create(&options, &queue) < 0) {
        fprintf(stderr, "%s\n", dpt_strerror_detail());
        return 77;
    }
    struct dpt_file *file = make_file("data", (size_t)COUNT * LENGTH);
    /* Never freed: that is what the caller of a lost request has to do. */
    static unsigned char *memory[COUNT];
    for (int at = 0; at < COUNT; at++) {
        /* Aligned, so that the device has it, and not a buffer of the library. */
        memory[at] = aligned_alloc(4096, LENGTH);
        CHECK(memory[at] != NULL);
        struct dpt_request request =
            request_of(file, DPT_OP_READ, (int64_t)at * LENGTH, memory[at], LENGTH, (uint64_t)at);
        CHECK(dpt_queue_submit(queue, &request, 1) == 1);
    }
    struct dpt_file *strict = NULL;
    struct dpt_file_options only_direct = {sizeof only_direct, DPT_FILE_STRICT};
    int is_buffered = dpt_file_open("data", O_RDONLY, 0, &only_direct, &strict) < 0;
    CHECK(is_buffered || dpt_file_close(strict) == 0);
    forbid_io_uring();
    int reported = 0, count;
    while ((count = dpt_queue_complete(queue, done, 1, COUNT, -1)) > 0) {
        for (int at = 0; at < count; at++) {
            CHECK(done[at].result == LENGTH || done[at].result < 0);
            /* What was in the device, and not in a buffer of the library, stays in flight. */
            CHECK(done[at].result < 0 || done[at].outcome.done == LENGTH);
            CHECK((done[at].result < 0) == (dpt_completion_detail(queue, (unsigned)at)[0] != 0));
        }
        reported += count;
    }
    CHECK(count == -ENOTRECOVERABLE);
    REFUSED(dpt_queue_complete(queue, done, 0, COUNT, 0), ENOTRECOVERABLE);
    struct dpt_request request = request_of(file, DPT_OP_FSYNC, 0, NULL, 0, 0);
    REFUSED(dpt_queue_submit(queue, &request, 1), ENOTRECOVERABLE);
    int lost = dpt_queue_in_flight(queue);
    CHECK(lost + reported == COUNT);
    CHECK(lost > 0 || is_buffered);
    CHECK(dpt_queue_destroy(queue) == (lost > 0 ? -ENOTRECOVERABLE : 0));
    REFUSED(dpt_queue_in_flight(queue), EBADF);
    /* Files are as they were, and so is a queue that finds another backend. */
    CHECK(dpt_pread(file, memory[0], 0, 0) == 0);
    queue = make_queue("threads");
    CHECK(dpt_queue_submit(queue, &request, 1) == 1);
    CHECK(dpt_queue_complete(queue, done, 1, 1, -1) == 1 && done[0].result == 0);
    CHECK(dpt_queue_destroy(queue) == 0);
    CHECK(dpt_file_close(file) == 0);
    printf("lost %d\n", lost);
    return 0;
}

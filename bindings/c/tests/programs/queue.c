/* A queue on the backend that is the first argument. */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>

enum { COUNT = 40, LENGTH = 10000 };

static const char *backend;

/* Takes one completion, whatever the time. */
static struct dpt_completion take(struct dpt_queue *queue)
{
    struct dpt_completion done;
    CHECK(dpt_queue_complete(queue, &done, 1, 1, -1) == 1);
    return done;
}

static void check_parts(const struct dpt_completion *done, uint64_t length)
{
    const struct dpt_outcome *outcome = &done->outcome;
    CHECK(done->route.direct + done->route.bounced + done->route.buffered == length);
    CHECK((done->route.direct == length) == (done->route.why == 0));
    CHECK(outcome->done == length && outcome->done_prefix == length);
    CHECK(outcome->failed + outcome->not_tried + outcome->unknown == 0);
    CHECK(done->timing.submitted + done->timing.reaped + done->timing.finished == 0);
}

/* Requests have timings in a queue that was asked for them. */
static void timings(struct dpt_file *file)
{
    struct dpt_queue_options options;
    struct dpt_queue *queue;
    unsigned char bytes[3000];
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = backend;
    options.flags = DPT_QUEUE_TIMINGS;
    CHECK(dpt_queue_create(&options, &queue) == 0);
    struct dpt_request request = request_of(file, DPT_OP_READ, 77, bytes, sizeof bytes, 0);
    CHECK(dpt_queue_submit(queue, &request, 1) == 1);
    struct dpt_completion done = take(queue);
    CHECK(done.result == sizeof bytes && done.timing.finished > 0);
    CHECK(done.timing.submitted <= done.timing.reaped);
    CHECK(done.timing.reaped <= done.timing.finished);
    CHECK(dpt_queue_destroy(queue) == 0);
}

/* Misaligned reads and writes, all in flight, each with its memory and its number. */
static void many(struct dpt_file *file)
{
    struct dpt_queue *queue = make_queue(backend);
    static unsigned char memory[COUNT][LENGTH];
    struct dpt_request requests[COUNT];
    struct dpt_completion done[COUNT];
    char seen[COUNT] = {0};
    CHECK(strcmp(dpt_queue_backend(queue), backend) == 0);
    for (int at = 0; at < COUNT; at++) {
        int64_t offset = at * 20000 + at;
        uint32_t op = at % 2 ? DPT_OP_WRITE : DPT_OP_READ;
        memset(memory[at], at, LENGTH);
        requests[at] = request_of(file, op, offset, memory[at], LENGTH, (uint64_t)at);
    }
    requests[1].flags = DPT_REQUEST_DSYNC;
    CHECK(dpt_queue_submit(queue, requests, COUNT) == COUNT);
    CHECK(dpt_queue_in_flight(queue) == COUNT);
    int finished = 0;
    while (finished < COUNT) {
        /* At most seven at a time, so that some stay with the queue. */
        int count = dpt_queue_complete(queue, done, 3, 7, -1);
        CHECK(count > 0 && (count >= 3 || finished + count == COUNT));
        for (int at = 0; at < count; at++) {
            uint64_t number = done[at].user_data;
            CHECK(number < COUNT && !seen[number]);
            seen[number] = 1;
            CHECK(done[at].op == requests[number].op && done[at].result == LENGTH);
            CHECK(strcmp(dpt_completion_detail(queue, (unsigned)at), "") == 0);
            check_parts(&done[at], LENGTH);
        }
        finished += count;
        CHECK(dpt_queue_in_flight(queue) == COUNT - finished);
    }
    CHECK(dpt_queue_complete(queue, done, 1, COUNT, -1) == 0);
    for (int at = 0; at < COUNT; at += 2)
        CHECK(is_pattern(memory[at], LENGTH, (size_t)at * 20000 + (size_t)at));
    CHECK(dpt_queue_destroy(queue) == 0);
    for (int at = 1; at < COUNT; at += 2) {
        unsigned char bytes[LENGTH];
        CHECK(dpt_pread(file, bytes, LENGTH, at * 20000 + at) == LENGTH);
        CHECK(bytes[0] == at && memcmp(bytes, bytes + 1, LENGTH - 1) == 0);
    }
}

/* A short read, a flush, an empty request, and requests on a file that is closed meanwhile. */
static void kinds(void)
{
    struct dpt_queue *queue = make_queue(backend);
    struct dpt_file *file = make_file("kinds", 100000);
    unsigned char bytes[5000];
    struct dpt_request requests[4] = {
        request_of(file, DPT_OP_READ, 99000, bytes, sizeof bytes, 1),
        request_of(file, DPT_OP_FSYNC, 0, NULL, 0, 2),
        request_of(file, DPT_OP_FDATASYNC, 0, NULL, 0, 3),
        request_of(file, DPT_OP_READ, 0, NULL, 0, 4),
    };
    CHECK(dpt_queue_submit(queue, requests, 4) == 4);
    CHECK(dpt_file_close(file) == 0);
    for (int left = 4; left > 0; left--) {
        struct dpt_completion done = take(queue);
        CHECK(done.result == (done.user_data == 1 ? 1000 : 0));
        CHECK(done.op == requests[done.user_data - 1].op);
    }
    CHECK(is_pattern(bytes, 1000, 99000));
    REFUSED(dpt_queue_submit(queue, requests, 1), EBADF);
    file = open_file("kinds", O_RDONLY, 0);
    requests[0] = request_of(file, DPT_OP_WRITE, 0, bytes, 10, 5);
    REFUSED(dpt_queue_submit(queue, requests, 1), EBADF);
    CHECK(dpt_file_close(file) == 0);
    CHECK(dpt_queue_destroy(queue) == 0);
}

/* The queue is full at 128; what was not taken counts. */
static void full(struct dpt_file *file)
{
    struct dpt_queue *queue = make_queue(backend);
    static unsigned char memory[130][512];
    struct dpt_request requests[130];
    struct dpt_completion done[130];
    for (int at = 0; at < 130; at++)
        requests[at] = request_of(file, DPT_OP_READ, at * 512, memory[at], 512, (uint64_t)at);
    CHECK(dpt_queue_submit(queue, requests, 130) == 128);
    REFUSED(dpt_queue_submit(queue, requests + 128, 2), EAGAIN);
    CHECK(dpt_queue_complete(queue, done, 128, 130, -1) == 128);
    CHECK(dpt_queue_submit(queue, requests + 128, 2) == 2);
    CHECK(dpt_queue_complete(queue, done, 130, 130, -1) == 2);
    CHECK(dpt_queue_destroy(queue) == 0);
}

/* A caller that only polls finishes everything, also what it does not take at once. */
static void polled(struct dpt_file *file)
{
    struct dpt_queue *queue = make_queue(backend);
    static unsigned char memory[COUNT][LENGTH];
    struct pollfd event = {dpt_queue_event_fd(queue), POLLIN, 0};
    CHECK(event.fd >= 0 && dpt_queue_event_fd(queue) == event.fd);
    CHECK(poll(&event, 1, 0) == 0);
    for (unsigned max = 1; max <= 3; max++) {
        int finished = 0;
        for (int at = 0; at < COUNT; at++) {
            struct dpt_request request = request_of(file, at % 3 ? DPT_OP_READ : DPT_OP_WRITE,
                                                    at * 12000 + 1, memory[at], LENGTH, 0);
            CHECK(dpt_queue_submit(queue, &request, 1) == 1);
        }
        while (finished < COUNT) {
            struct dpt_completion done[3];
            CHECK(poll(&event, 1, 20000) == 1);
            int count = dpt_queue_complete(queue, done, 0, max, 0);
            CHECK(count >= 0);
            for (int at = 0; at < count; at++)
                CHECK(done[at].result == LENGTH);
            finished += count;
        }
        struct dpt_completion none;
        CHECK(dpt_queue_complete(queue, &none, 0, 1, 0) == 0);
        CHECK(poll(&event, 1, 0) == 0);
    }
    CHECK(dpt_queue_destroy(queue) == 0);

    queue = make_queue(backend);
    struct dpt_request flush = request_of(file, DPT_OP_FSYNC, 0, NULL, 0, 0);
    CHECK(dpt_queue_submit(queue, &flush, 1) == 1);
    REFUSED(dpt_queue_event_fd(queue), EBUSY);
    CHECK(dpt_queue_destroy(queue) == 0);
}

/* A queue is destroyed with requests in flight: what it wrote is there, its memory is free. */
static void destroyed(struct dpt_file *file)
{
    struct dpt_queue *queue = make_queue(backend);
    unsigned char *memory = malloc(1 << 20);
    CHECK(memory != NULL);
    memset(memory, 'd', 1 << 20);
    struct dpt_request requests[2] = {
        request_of(file, DPT_OP_WRITE, 3, memory, 1 << 19, 1),
        request_of(file, DPT_OP_READ, 5, memory + (1 << 19), 1 << 19, 2),
    };
    CHECK(dpt_queue_submit(queue, requests, 2) == 2);
    CHECK(dpt_queue_destroy(queue) == 0);
    free(memory);
    unsigned char bytes[100];
    CHECK(dpt_pread(file, bytes, 100, 3 + (1 << 19) - 100) == 100);
    CHECK(bytes[0] == 'd' && bytes[99] == 'd');
}

static void presets(struct dpt_file *file)
{
    const char *names[] = {"linux-3.8", "linux-5.5", "lustre-2.13", "diopter"};
    for (int at = 0; at < 4; at++) {
        struct dpt_queue_options options;
        struct dpt_queue *queue;
        unsigned char bytes[3000];
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.backend = backend;
        options.preset = names[at];
        options.depth = 4;
        CHECK(dpt_queue_create(&options, &queue) == 0);
        struct dpt_request request = request_of(file, DPT_OP_WRITE, 77, bytes, sizeof bytes, 0);
        memset(bytes, at, sizeof bytes);
        CHECK(dpt_queue_submit(queue, &request, 1) == 1);
        CHECK(take(queue).result == sizeof bytes);
        CHECK(dpt_queue_destroy(queue) == 0);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    backend = argv[1];
    struct dpt_queue_options options;
    struct dpt_queue *queue;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = backend;
    if (dpt_queue_create(&options, &queue) < 0) {
        fprintf(stderr, "%s\n", dpt_strerror_detail());
        return 77;
    }
    CHECK(dpt_queue_destroy(queue) == 0);
    struct dpt_file *file = make_file("data", 1 << 20);
    many(file);
    CHECK(dpt_file_close(file) == 0);
    file = make_file("data", 2 << 20);
    kinds();
    full(file);
    polled(file);
    destroyed(file);
    presets(file);
    timings(file);
    CHECK(dpt_file_close(file) == 0);
    return 0;
}

/*
 * Every function with null, with closed and wrong handles, and with wrong arguments. The first
 * argument is the backend, if there is one.
 */
#define _GNU_SOURCE
#include "check.h"

#include <limits.h>
#include <stddef.h>
#include <unistd.h>

static void each_file_call(struct dpt_file *file, int number)
{
    char byte = 0;
    struct iovec part = {&byte, 1};
    REFUSED(dpt_file_close(file), number);
    REFUSED(dpt_file_size(file), number);
    REFUSED(dpt_pread(file, &byte, 1, 0), number);
    REFUSED(dpt_pwrite(file, &byte, 1, 0), number);
    REFUSED(dpt_preadv(file, &part, 1, 0), number);
    REFUSED(dpt_pwritev(file, &part, 1, 0), number);
    REFUSED(dpt_fsync(file), number);
    REFUSED(dpt_fdatasync(file), number);
    REFUSED(dpt_ftruncate(file, 0), number);
    REFUSED(dpt_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 1), number);
}

static void each_queue_call(struct dpt_queue *queue, int number)
{
    struct dpt_request request = request_of(NULL, DPT_OP_FSYNC, 0, NULL, 0, 0);
    struct dpt_completion done;
    REFUSED(dpt_queue_destroy(queue), number);
    REFUSED(dpt_queue_submit(queue, &request, 1), number);
    REFUSED(dpt_queue_complete(queue, &done, 0, 1, 0), number);
    REFUSED(dpt_queue_cancel(queue, 0), number);
    REFUSED(dpt_queue_in_flight(queue), number);
    REFUSED(dpt_queue_event_fd(queue), number);
    CHECK(dpt_queue_backend(queue) == NULL && dpt_strerror_detail()[0] != '\0');
    CHECK(dpt_completion_detail(queue, 0) == NULL && dpt_strerror_detail()[0] != '\0');
}

static void opening(void)
{
    struct dpt_file *file = NULL;
    struct {
        struct dpt_file_options known;
        uint64_t newer;
    } options;
    memset(&options, 0, sizeof options);
    REFUSED(dpt_file_open(NULL, O_RDONLY, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_RDONLY, 0, NULL, NULL), EINVAL);
    REFUSED(dpt_file_open("gone", O_RDONLY, 0, NULL, &file), ENOENT);
    CHECK(strstr(dpt_strerror_detail(), "gone") != NULL);
    REFUSED(dpt_file_open("", O_RDONLY, 0, NULL, &file), ENOENT);
    REFUSED(dpt_file_open(".", O_RDONLY, 0, NULL, &file), EISDIR);
    REFUSED(dpt_file_open("/dev/null", O_RDONLY, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_ACCMODE, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_RDONLY | O_TRUNC, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_RDONLY | O_PATH, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_RDWR | O_TMPFILE, 0, NULL, &file), EINVAL);
    REFUSED(dpt_file_open("data", O_RDONLY, 0, &options.known, &file), EINVAL);
    options.known.size = SIZE_MAX;
    REFUSED(dpt_file_open("data", O_RDONLY, 0, &options.known, &file), EINVAL);
    options.known.size = sizeof options;
    options.newer = 1;
    REFUSED(dpt_file_open("data", O_RDONLY, 0, &options.known, &file), E2BIG);
    options.newer = 0;
    options.known.flags = 1u << 31;
    REFUSED(dpt_file_open("data", O_RDONLY, 0, &options.known, &file), EINVAL);
    options.known.flags = DPT_FILE_IMAGE;
    REFUSED(dpt_file_open("data::/inside", O_RDONLY, 0, &options.known, &file), EINVAL);
    CHECK(strstr(dpt_strerror_detail(), "file system") != NULL);
    int ends[2];
    CHECK(pipe(ends) == 0);
    REFUSED(dpt_file_from_fd(-1, &file), EBADF);
    REFUSED(dpt_file_from_fd(0, NULL), EINVAL);
    REFUSED(dpt_file_from_fd(ends[0], &file), EINVAL);
    CHECK(fcntl(ends[0], F_GETFD) != -1);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    options.known.flags = 0;
    CHECK(dpt_file_open("data", O_RDONLY, 0, &options.known, &file) == 0);
    CHECK(dpt_file_close(file) == 0);
}

static void transfers(struct dpt_file *file)
{
    char byte = 0;
    struct iovec part = {NULL, 1};
    struct iovec huge[2] = {{&byte, SSIZE_MAX}, {&byte, SSIZE_MAX}};
    REFUSED(dpt_pread(file, NULL, 1, 0), EINVAL);
    REFUSED(dpt_pwrite(file, NULL, 1, 0), EINVAL);
    REFUSED(dpt_pread(file, &byte, 1, -1), EINVAL);
    REFUSED(dpt_pwrite(file, &byte, 1, -1), EINVAL);
    REFUSED(dpt_pwrite(file, &byte, 1, INT64_MAX), EFBIG);
    REFUSED(dpt_pread(file, &byte, (size_t)SSIZE_MAX + 1, 0), EINVAL);
    REFUSED(dpt_preadv(file, &part, 1, 0), EINVAL);
    REFUSED(dpt_pwritev(file, &part, 1, 0), EINVAL);
    REFUSED(dpt_preadv(file, NULL, 1, 0), EINVAL);
    REFUSED(dpt_preadv(file, &part, -1, 0), EINVAL);
    REFUSED(dpt_pwritev(file, &part, 1025, 0), EINVAL);
    REFUSED(dpt_pwritev(file, huge, 2, 0), EINVAL);
    REFUSED(dpt_ftruncate(file, -1), EINVAL);
    REFUSED(dpt_fallocate(file, 0, 0, 1), EOPNOTSUPP);
    REFUSED(dpt_fallocate(file, FALLOC_FL_KEEP_SIZE, -1, 1), EINVAL);
    REFUSED(dpt_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 0), EINVAL);
}

static void queues(struct dpt_file *file, const char *backend)
{
    struct dpt_queue *queue = NULL;
    struct dpt_queue_options options;
    struct dpt_completion done[1];
    char byte = 0;
    memset(&options, 0, sizeof options);
    REFUSED(dpt_queue_create(NULL, NULL), EINVAL);
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    options.size = sizeof options;
    options.backend = "floppy";
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    options.backend = NULL;
    options.preset = "plan-9";
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    CHECK(strstr(dpt_strerror_detail(), "linux-4.15") != NULL);
    options.preset = NULL;
    options.depth = 129;
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    options.in_flight = 129;
    CHECK(dpt_queue_create(&options, &queue) == 0);
    CHECK(dpt_queue_destroy(queue) == 0);
    options.depth = 0;
    options.in_flight = 4097;
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    CHECK(strstr(dpt_strerror_detail(), "4096") != NULL);
    options.in_flight = 0;
    options.reserved = 1;
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    options.reserved = 0;
    // A program of before in_flight was there.
    options.size = offsetof(struct dpt_queue_options, in_flight);
    options.in_flight = 5000;
    CHECK(dpt_queue_create(&options, &queue) == 0);
    CHECK(dpt_queue_destroy(queue) == 0);
    options.size--;
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    options.size = sizeof options;
    options.in_flight = 0;
    options.flags = 2;
    REFUSED(dpt_queue_create(&options, &queue), EINVAL);
    queue = make_queue(backend);

    CHECK(dpt_queue_submit(queue, NULL, 0) == 0);
    CHECK(dpt_queue_complete(queue, done, 1, 1, -1) == 0);
    REFUSED(dpt_queue_submit(queue, NULL, 1), EINVAL);
    REFUSED(dpt_queue_complete(queue, NULL, 0, 1, 0), EINVAL);
    REFUSED(dpt_queue_complete(queue, done, 0, 0, 0), EINVAL);
    REFUSED(dpt_queue_complete(queue, done, 2, 1, 0), EINVAL);
    REFUSED(dpt_queue_cancel(queue, 7), ENOENT);
    CHECK(strcmp(dpt_completion_detail(queue, 0), "") == 0);

    struct dpt_request wrong[] = {
        request_of(NULL, DPT_OP_READ, 0, &byte, 1, 0),
        request_of(file, 0, 0, &byte, 1, 0),
        request_of(file, 99, 0, &byte, 1, 0),
        request_of(file, DPT_OP_READ, -1, &byte, 1, 0),
        request_of(file, DPT_OP_READ, 0, NULL, 1, 0),
        request_of(file, DPT_OP_FSYNC, 0, &byte, 1, 0),
        request_of(file, DPT_OP_READ, 0, &byte, 1, 0),
    };
    int count = (int)(sizeof wrong / sizeof wrong[0]);
    wrong[count - 1].flags = DPT_REQUEST_DSYNC;
    for (int at = 0; at < count; at++)
        REFUSED(dpt_queue_submit(queue, &wrong[at], 1), EINVAL);
    /* Those before the one that is refused are taken. */
    struct dpt_request mixed[3] = {
        request_of(file, DPT_OP_READ, 0, &byte, 1, 1),
        request_of((struct dpt_file *)queue, DPT_OP_READ, 0, &byte, 1, 2),
        request_of(file, DPT_OP_READ, 0, &byte, 1, 3),
    };
    CHECK(dpt_queue_submit(queue, mixed, 3) == 1);
    REFUSED(dpt_queue_submit(queue, mixed + 1, 1), EBADF);
    CHECK(dpt_queue_in_flight(queue) == 1);
    CHECK(dpt_queue_complete(queue, done, 1, 1, -1) == 1 && done[0].user_data == 1);
    CHECK(dpt_queue_destroy(queue) == 0);
    each_queue_call(queue, EBADF);
}

int main(int argc, char **argv)
{
    const char *backend = argc > 1 ? argv[1] : NULL;
    uint64_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct dpt_file *file = make_file("data", 10000);
    struct dpt_queue *queue = make_queue(backend);
    each_file_call(NULL, EINVAL);
    each_queue_call(NULL, EINVAL);
    each_file_call((struct dpt_file *)words, EBADF);
    each_queue_call((struct dpt_queue *)words, EBADF);
    each_file_call((struct dpt_file *)((char *)words + 1), EBADF);
    /* One for the other. */
    each_file_call((struct dpt_file *)queue, EBADF);
    each_queue_call((struct dpt_queue *)file, EBADF);
    opening();
    transfers(file);
    queues(file, backend);
    CHECK(dpt_queue_destroy(queue) == 0);
    CHECK(dpt_file_close(file) == 0);
    each_file_call(file, EBADF);
    return 0;
}
